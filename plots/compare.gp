# SPDX-License-Identifier: Apache-2.0
#
# A comparison of methods: on the left what each holds at one context, stacked; on the right their peaks over
# contexts, up to the longest one of each, and what the device has.
#
# Run by plots/picture.c as `gnuplot -d settings.gp colours.gp page.gp compare.gp`; settings.gp, which
# compare_plot.c writes, says what is set there:
#
#   format output folder width height   picture and where its data lie
#   title subtitle bar_title            texts
#   limit limit_text highest            GiB of the device, and of the axis
#   middle                              share of the width: bars are left of it, lines right
#   left_margin right_margin            of the panel of lines, beyond the middle and before the edge
#   bottom_margin top_margin            of both panels
#   methods method_I has_bar_I          how many, their names; 0: it does not fit there
#   categories                          those that occur, from the bottom up
#   lines                               how many are drawn
#   label_I end_I label_height          names of the methods of a line and what they reach; where it ends, tokens and GiB,
#                                       the row of its label, from the line of the limit up, and 1 if it begins there; pixels
#                                       of a row
#   left_out                            methods without a line; "" if none
#   x_low x_high ticks                  the axis of contexts, and where "8K" is
#
# Data: bars has a block for every category, of a method's number and from and to in GiB; lines one for every
# line, of tokens and GiB.

left_edge = X(104)
lines_left = middle + X(left_margin)
right_edge = 1 - X(right_margin)
bottom_edge = Y(bottom_margin)
top_edge = 1 - Y(top_margin)
tics_font = font(12) # a function is not taken there
columns = 7

# Lines are told apart by the labels to which thin lines lead from their ends, by dots and dashes: colours are those of
# categories. The first is the thickest.
dots_of_lines = "7 5 9 13 11 6 4 8"
colour_of(i) = i == 1 ? colour_text : "#6E6E6E"
dash_of(i) = i <= 4 ? 1 : 3

set multiplot
set style textbox opaque fillcolor rgb "#FFFFFF" noborder margins 0.3, 0.3

# Everything at screen coordinates in one empty plot.
set lmargin at screen 0
set rmargin at screen 1
set bmargin at screen 0
set tmargin at screen 1
unset border
unset tics
unset key
set xrange [0:1]
set yrange [0:1]
set label title at screen left_edge, 1 - Y(36) left font font(19) textcolor rgb colour_text
set label subtitle at screen left_edge, 1 - Y(68) left font font(12.5) textcolor rgb colour_quiet
set label bar_title at screen left_edge, 1 - Y(108) left font font(13.5) textcolor rgb colour_text
set label "by context, up to the longest that fits" at screen lines_left, 1 - Y(108) left \
    font font(13.5) textcolor rgb colour_text
set label "context (tokens)" center at screen (lines_left + right_edge) / 2, bottom_edge - Y(54) \
    font font(13) textcolor rgb colour_text
set label "peak of a GPU, used (GiB)" center rotate by 90 at screen X(30), (bottom_edge + top_edge) / 2 \
    font font(13) textcolor rgb colour_text
do for [i = 1:words(categories)] {
    category = word(categories, i)
    legend_x = left_edge + ((i - 1) % columns) * X(190)
    legend_y = Y(62 - 26 * ((i - 1) / columns))
    set object i rectangle from screen legend_x, legend_y - Y(7) to screen legend_x + X(16), legend_y + Y(7) \
        fillstyle solid noborder fillcolor rgb value("colour_" . category)
    set label value("label_" . category) at screen legend_x + X(24), legend_y left font font(12) \
        textcolor rgb colour_text
}
set label left_out at screen right_edge, bottom_edge - Y(84) right font font(11) textcolor rgb colour_quiet
plot -1 notitle
unset object
unset label

set border 3 linecolor rgb colour_quiet linewidth scale
set tmargin at screen top_edge
set bmargin at screen bottom_edge
set yrange [0:highest]
set ytics out nomirror scale 0.6 font tics_font textcolor rgb colour_text
set grid ytics back linetype 1 linecolor rgb colour_grid linewidth scale
set arrow from graph 0, first limit to graph 1, first limit nohead front linecolor rgb colour_limit \
    linewidth 1.5 * scale dashtype 2
set label limit_text at graph 0.01, first limit offset 0, 0.7 left front font tics_font textcolor rgb colour_limit

# What they hold.
set lmargin at screen left_edge
set rmargin at screen middle
set xrange [0.4:methods + 0.6]
if (methods > 5) {
    set xtics out nomirror scale 0.4 rotate by 35 right font tics_font textcolor rgb colour_text
} else {
    set xtics out nomirror scale 0.4 font tics_font textcolor rgb colour_text
}
set xtics ("" 0)
do for [i = 1:methods] {
    set xtics add (value(sprintf("method_%d", i)) i)
    if (value(sprintf("has_bar_%d", i)) == 0) {
        set label "does not fit" at first i, graph 0.02 rotate by 90 left font tics_font textcolor rgb colour_quiet
    }
}
plot for [c = 1:words(categories)] folder . "/bars" index c - 1 \
    using 1:2:($1 - 0.36):($1 + 0.36):2:3 with boxxyerror fillstyle solid noborder \
    fillcolor rgb value("colour_" . word(categories, c)) notitle
unset label

# How far they reach.
set lmargin at screen lines_left
set rmargin at screen right_edge
set xtics norotate center
set logscale x 2
set xrange [x_low:x_high]
eval "set xtics out nomirror scale 0.6 (" . ticks . ")"
limit_y = bottom_edge + limit / highest * (top_edge - bottom_edge)
do for [i = 1:lines] {
    end = value(sprintf("end_%d", i))
    label_y = limit_y + Y(label_height * (real(word(end, 3)) + 0.7))
    set arrow from first real(word(end, 1)), first real(word(end, 2)) to first real(word(end, 1)), screen label_y \
        nohead back linecolor rgb colour_quiet linewidth 0.7 * scale
    begins = word(end, 4) eq "1"
    # The label has no dot of its own, which would look like a point of the line.
    set label i value(sprintf("label_%d", i)) at first real(word(end, 1)), screen label_y left front boxed \
        offset 0.7, 0 font tics_font textcolor rgb colour_text
    if (!begins) {
        set label i right offset -0.7, 0
    }
}
plot for [i = lines:1:-1] folder . "/lines" index i - 1 using 1:2 with linespoints \
    linewidth (i == 1 ? 2.5 : 1.5) * scale dashtype dash_of(i) pointtype int(word(dots_of_lines, i)) \
    pointsize dot_size * 1.6 * scale linecolor rgb colour_of(i) notitle
unset multiplot
set output
is_drawn = 1
