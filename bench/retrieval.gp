# SPDX-License-Identifier: Apache-2.0
#
# The losses of far answers that bench/retrieval wrote, as a picture, each the mean of ten steps:
#
#   gnuplot -e "input='retrieval.tsv'; output='retrieval.png'" bench/retrieval.gp
set terminal pngcairo size 800,520 font "Sans,13" noenhanced background "#FFFFFF"
set output output
set datafile separator "\t"
set key top right Left reverse samplen 2
set xlabel "step"
set ylabel "loss of the far answers, nats"
set yrange [0:4]
set grid lc rgb "#DDDDDD"
array colour[4] = ["#0072B2", "#D55E00", "#009E73", "#999999"]
array dash[4] = [1, 1, 1, 2]
plot for [i = 2:5] input using (10 * floor((column(1) - 1) / 10) + 5):(column(i)) \
    smooth unique with lines lw 2 dashtype dash[i - 1] lc rgb colour[i - 1] \
    title columnheader(i)
