# SPDX-License-Identifier: Apache-2.0
#
# A sweep over contexts or limits: seconds of a step, MFU, and the peaks of device and host, one panel
# under the other; behind them a band for every nest, with its name over it, or turned in it, or below, where there is
# a number instead.
#
# Run by plots/picture.c as `gnuplot -d settings.gp colours.gp page.gp sweep.gp`; settings.gp, which
# sweep_plot.c writes, says what is set there:
#
#   format output folder width height   picture and where its data lie
#   title subtitle x_title              texts
#   tokens                              1: the x axis is logarithmic, and ticks says where "8K" is
#   x_low x_high                        ends of the x axis
#   seconds_low seconds_high gib_high   what is drawn; has_host: whether the host is used
#   left_margin right_margin            of the panels
#   bands band_I                        how many; "from to nest rows turned", by rising x: the number of the nest (0:
#                                       nothing fits), and the rows of its name (0: no room), whether it stands in the band
#   band_I_ROW name_rows row_height     the rows; the most of them over a band, and pixels of one
#   listed nest_N                       nests that have a number, and their names
#
# Data: dots has x, seconds, MFU in percent, GiB of peak and limit of device and of host, and the bound of the seconds.

# More nests have numbers above their bands, and no names.
named = words(listed) > 24 ? 24 : words(listed)
legend_columns = 2
legend_rows = (named + legend_columns - 1) / legend_columns
panels_bottom = Y(96 + 24 * legend_rows)
panels_top = 1 - Y(106 + row_height * name_rows)
gap = Y(22)
shares = "0.42 0.20 0.38"
left_edge = X(left_margin)
right_edge = 1 - X(right_margin)
panels_height = panels_top - panels_bottom - 2 * gap
# No colours: those are of categories of memory.
colour_first = colour_text
colour_second = "#7A7A7A"
colour_band = "#EDEDED"

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
set label x_title center at screen (left_edge + right_edge) / 2, panels_bottom - Y(54) \
    font font(13) textcolor rgb colour_text
do for [i = 1:named] {
    column = (i - 1) / legend_rows
    row = (i - 1) % legend_rows
    set label value("nest_" . word(listed, i)) left font font(12) textcolor rgb colour_text \
        at screen left_edge + column * (right_edge - left_edge) / legend_columns, \
        panels_bottom - Y(84 + 24 * row)
}
plot -1 notitle
unset label

tics_font = font(12) # a function is not taken there
set border 3 linecolor rgb colour_quiet linewidth scale
set lmargin at screen left_edge
set rmargin at screen right_edge
set xrange [x_low:x_high]
if (tokens) {
    set logscale x 2
}
set xtics out nomirror scale 0.6 font tics_font textcolor rgb colour_text
set ytics out nomirror scale 0.6 font tics_font textcolor rgb colour_text
set grid ytics back linetype 1 linecolor rgb colour_grid linewidth scale
dots = folder . "/dots"
top = panels_top
do for [p = 1:3] {
    bottom = top - panels_height * real(word(shares, p))
    set tmargin at screen top
    set bmargin at screen bottom
    do for [i = 1:bands] {
        band = value(sprintf("band_%d", i))
        from_x = real(word(band, 1))
        to_x = real(word(band, 2))
        number = word(band, 3)
        rows = int(word(band, 4))
        turned = word(band, 5) eq "1"
        set object i rectangle from first from_x, graph 0 to first to_x, graph 1 behind \
            fillstyle solid noborder \
            fillcolor rgb (number eq "0" ? "#DCDCDC" : i % 2 == 1 ? "#FFFFFF" : colour_band)
        middle = tokens ? sqrt(from_x * to_x) : (from_x + to_x) / 2
        if (p == 1 && rows == 0 && number ne "0") {
            set label number at first middle, screen top + Y(14) center font font(13) textcolor rgb colour_text
        }
        do for [row = 1:rows] {
            name = value(sprintf("band_%d_%d", i, row))
            if (p == 1 && !turned) {
                set label name at first middle, screen top + Y(14 + row_height * (rows - row)) center \
                    font font(11) textcolor rgb colour_text
            }
            if (p == 1 && turned) {
                set label name at first middle, screen top - Y(6) \
                    offset screen X(row_height * (row - (rows + 1) / 2.0)), 0 rotate by 90 right \
                    font font(11) textcolor rgb colour_quiet
            }
        }
        if (i > 1) {
            set arrow i from first from_x, graph 0 to first from_x, graph 1 nohead front \
                linecolor rgb colour_quiet linewidth scale dashtype 3
        }
    }
    if (p == 3) {
        if (tokens) {
            eval "set xtics out nomirror (" . ticks . ")"
        } else {
            set xtics autofreq format "%g"
        }
    } else {
        set xtics format ""
        if (tokens) {
            unset xtics
        }
    }
    if (p == 1) {
        if (seconds_high > 8 * seconds_low) {
            set logscale y
            set yrange [seconds_low / 1.6:seconds_high * 1.6]
            set ytics format "%g"
        } else {
            set yrange [0:seconds_high * 1.15]
            set ytics autofreq format "%g"
        }
        set label "step (seconds)" center rotate by 90 at screen X(30), (bottom + top) / 2 \
            font font(13) textcolor rgb colour_text
        set key at graph 0.995, graph 0.04 right bottom horizontal font tics_font textcolor rgb colour_text \
            samplen 2
        plot dots using 1:2 with linespoints linewidth 2 * scale pointtype 7 pointsize dot_size * 1.1 * scale \
                linecolor rgb colour_first title "plan", \
            dots using 1:8 with lines linewidth 1.5 * scale dashtype 2 linecolor rgb colour_second \
                title "no schedule is faster"
        unset key
    }
    if (p == 2) {
        unset logscale y
        set yrange [0:100]
        set ytics 25 format "%g"
        set label "MFU (%)" center rotate by 90 at screen X(30), (bottom + top) / 2 \
            font font(13) textcolor rgb colour_text
        plot dots using 1:3 with linespoints linewidth 2 * scale pointtype 7 pointsize dot_size * 1.1 * scale \
            linecolor rgb colour_first notitle
    }
    if (p == 3) {
        set yrange [0:gib_high * 1.25]
        set ytics autofreq format "%g"
        set label "peak (GiB)" center rotate by 90 at screen X(30), (bottom + top) / 2 \
            font font(13) textcolor rgb colour_text
        set key at graph 0.995, graph 0.98 right top horizontal font tics_font textcolor rgb colour_text \
            samplen 2
        plot dots using 1:4 with linespoints linewidth 2 * scale pointtype 7 pointsize dot_size * 1.1 * scale \
                linecolor rgb colour_first title "device", \
            dots using 1:5 with lines linewidth scale dashtype 2 linecolor rgb colour_first \
                title "its limit", \
            (has_host ? dots : "/dev/null") using 1:6 with linespoints linewidth 2 * scale \
                pointtype 5 pointsize dot_size * scale linecolor rgb colour_second \
                title (has_host ? "host" : "")
    }
    unset object
    unset arrow
    unset label
    top = bottom - gap
}
unset multiplot
set output
is_drawn = 1
