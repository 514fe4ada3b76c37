# SPDX-License-Identifier: Apache-2.0
#
# What bench/selectors wrote, as a picture: loss of the text held out against the seconds of a step, and the
# loss while it trains against the seconds trained:
#
#   gnuplot -e "input='selectors.tsv'; curves='selectors-curves.tsv'; output='selectors.png'" bench/selectors.gp
set terminal pngcairo size 1200,520 font "Sans,13" noenhanced background "#FFFFFF"
set output output
set datafile separator "\t"
set grid lc rgb "#DDDDDD"
array colour[6] = ["#0072B2", "#D55E00", "#E69F00", "#009E73", "#56B4E9", "#CC79A7"]
set multiplot layout 1,2
unset key
set xlabel "step, ms"
set ylabel "loss of the text held out, nats a byte"
stats input using ($2 * 1e3):4 skip 1 nooutput name "rows"
set xrange [0:1.25 * rows_max_x]
span = rows_max_y - rows_min_y
set yrange [rows_min_y - 0.3 * span:rows_max_y + 0.3 * span]
plot for [i = 0:5] input using ($2 * 1e3):4 skip 1 every ::i::i with points pt 7 ps 1.6 \
         lc rgb colour[i + 1], \
     input using ($2 * 1e3):4:1 skip 1 with labels left offset 1,0 notitle
set key top right Left reverse samplen 2
set xlabel "seconds trained"
set ylabel "loss, nats a byte"
set autoscale
set xrange [0:*]
plot for [i = 1:6] curves using (column(2 * i - 1)):(column(2 * i)) with lines lw 2 \
    lc rgb colour[i] title columnheader(2 * i)
unset multiplot
