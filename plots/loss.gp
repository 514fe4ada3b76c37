# SPDX-License-Identifier: Apache-2.0
#
# A training: loss and validation loss by step, and below them the norm of the gradient.
#
# Run by plots/picture.c as `gnuplot -d settings.gp colours.gp page.gp loss.gp`; settings.gp, which
# loss_plot.c writes, says what is set there:
#
#   format output folder width height   picture and where its data lie
#   title subtitle                      texts
#   norms texts                         how many gradient norms, and texts to evaluate on, there are
#   text_1 ...                          their titles
#   first_step last_step                which both panels show
#   failed_step failed                  a step that is not a number, which is marked (0: none), and its label
#
# Data: data has blocks of step and loss, step and gradient norm, and of each text step and validation loss.

left_edge = X(104)
right_edge = 1 - X(40)
top_edge = 1 - Y(100)
tics_font = font(12) # a function is not taken there
bottom_edge = norms > 0 ? 0.40 : Y(90)

set multiplot
set label title at screen left_edge, 1 - Y(36) left font font(19) textcolor rgb colour_text
set label subtitle at screen left_edge, 1 - Y(68) left font font(12.5) textcolor rgb colour_quiet

set border 3 linecolor rgb colour_quiet linewidth scale
set lmargin at screen left_edge
set rmargin at screen right_edge
set tmargin at screen top_edge
set bmargin at screen bottom_edge
set xtics out nomirror scale 0.6 font tics_font textcolor rgb colour_text
set ytics out nomirror scale 0.6 font tics_font textcolor rgb colour_text
set grid ytics back linetype 1 linecolor rgb colour_grid linewidth scale
margin = last_step > first_step ? 0.01 * (last_step - first_step) : 0.5
set xrange [first_step - margin:last_step + margin]
if (failed_step > 0) {
    set arrow from first failed_step, graph 0 to first failed_step, graph 1 nohead dashtype 2 \
        linewidth scale linecolor rgb colour_text
    set label failed at first failed_step, graph 0.06 right offset character -0.6, 0 front \
        font tics_font textcolor rgb colour_text
}
set ylabel "loss (nats a token)" font font(13) textcolor rgb colour_text
set key at graph 0.995, graph 0.99 right top font tics_font textcolor rgb colour_text samplen 2
data = folder . "/data"
if (norms == 0) { set xlabel "step" font font(13) textcolor rgb colour_text }
text_colours = "gradients kv kv_gradients optimizer workspace residuals logits staging"
colour_of_text(i) = value("colour_" . word(text_colours, (i - 1) % words(text_colours) + 1))
if (texts > 0) {
    plot data index 0 using 1:2 with lines linewidth 1.5 * scale linecolor rgb colour_weights title "training", \
        for [i = 1:texts] data index 1 + i using 1:2 with linespoints pointtype 7 \
            pointsize dot_size * scale linewidth 1.5 * scale \
            linecolor rgb colour_of_text(i) title value(sprintf("text_%d", i)) noenhanced
} else {
    plot data index 0 using 1:2 with linespoints pointtype 7 pointsize 0.4 * dot_size * scale \
        linewidth 1.5 * scale linecolor rgb colour_weights title "training"
}
if (norms > 0) {
    unset label
    set tmargin at screen 0.34
    set bmargin at screen Y(90)
    set xlabel "step" font font(13) textcolor rgb colour_text
    set ylabel "gradient norm" font font(13) textcolor rgb colour_text
    plot data index 1 using 1:2 with linespoints pointtype 7 pointsize 0.4 * dot_size * scale \
        linewidth 1.5 * scale linecolor rgb colour_kv notitle
}
unset multiplot
set output
is_drawn = 1
