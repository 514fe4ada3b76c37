# SPDX-License-Identifier: Apache-2.0
#
# The losses that bench/curves wrote, as a picture, each the mean of ten steps:
#
#   gnuplot -e "input='curves.tsv'; output='curves.png'" bench/curves.gp
set terminal pngcairo size 1200,640 font "Sans,13" noenhanced background "#FFFFFF"
set output output
set datafile separator "\t"
set key top right Left reverse samplen 2
set xlabel "step"
set ylabel "loss, nats a byte"
set grid lc rgb "#DDDDDD"
array colour[6] = ["#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9"]
plot for [i = 2:7] input using (10 * floor((column(1) - 1) / 10) + 5):(column(i)) \
    smooth unique with lines lw 2 dashtype i - 1 lc rgb colour[i - 1] title columnheader(i)
