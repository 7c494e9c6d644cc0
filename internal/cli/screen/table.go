// Package screen draws what berth top shows: a table of samples, on a terminal again and again in place.
package screen

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"berth/internal/node/top"
	"berth/internal/sys/text"
)

// column is one column of figures. If the columns do not fit, those of the highest rank are dropped first.
type column struct {
	head  string
	width int // with the space before it
	rank  int
	value func(*top.Use) *float64 // nil: not known
	text  func(float64) string
}

// allColumns returns the columns after the name, in the order in which they are shown.
func allColumns() []column {
	return []column{
		{"CPU%", 6, 1, func(u *top.Use) *float64 { return u.CPU }, percentText},
		{"THR%", 5, 6, func(u *top.Use) *float64 { return u.Throttled }, percentText},
		{"MEMORY", 7, 1, func(u *top.Use) *float64 { return number(u.Memory) }, binaryText},
		{"MAX", 7, 5, func(u *top.Use) *float64 { return number(u.MemoryMax) }, binaryText},
		{"cpu", 4, 4, func(u *top.Use) *float64 { return some(u, func(p *top.PressureUse) *top.StallUse { return p.CPU }) }, percentText},
		{"mem", 4, 4, func(u *top.Use) *float64 {
			return some(u, func(p *top.PressureUse) *top.StallUse { return p.Memory })
		}, percentText},
		{"io", 4, 4, func(u *top.Use) *float64 { return some(u, func(p *top.PressureUse) *top.StallUse { return p.IO }) }, percentText},
		{"READ/s", 7, 2, func(u *top.Use) *float64 { return sum(u.Disks, func(d top.DiskUse) float64 { return d.ReadBytes }) }, decimalText},
		{"WRIT/s", 7, 2, func(u *top.Use) *float64 { return sum(u.Disks, func(d top.DiskUse) float64 { return d.WriteBytes }) }, decimalText},
		{"R-IOPS", 7, 7, func(u *top.Use) *float64 { return sum(u.Disks, func(d top.DiskUse) float64 { return d.ReadOps }) }, decimalText},
		{"W-IOPS", 7, 7, func(u *top.Use) *float64 { return sum(u.Disks, func(d top.DiskUse) float64 { return d.WriteOps }) }, decimalText},
		{"RXbit", 6, 3, func(u *top.Use) *float64 { return sum(u.Links, func(l top.LinkUse) float64 { return l.RXBits }) }, decimalText},
		{"TXbit", 6, 3, func(u *top.Use) *float64 { return sum(u.Links, func(l top.LinkUse) float64 { return l.TXBits }) }, decimalText},
		{"TASKS", 6, 8, func(u *top.Use) *float64 { return number(u.PIDs) }, countText},
	}
}

// number converts a count to a figure of a column.
func number(n *int64) *float64 {
	if n == nil {
		return nil
	}
	f := float64(*n)
	return &f
}

// some returns the percentage of time in which at least one task waited for a resource (PSI "some").
func some(u *top.Use, of func(*top.PressureUse) *top.StallUse) *float64 {
	if u.Pressure == nil {
		return nil
	}
	if s := of(u.Pressure); s != nil {
		return s.Some
	}
	return nil
}

// sum adds up a figure of all disks or links; nil if they are not known.
func sum[T any](all []T, of func(T) float64) *float64 {
	if all == nil {
		return nil
	}
	total := 0.0
	for _, one := range all {
		total += of(one)
	}
	return &total
}

// view is how a sample is shown.
type view struct {
	width   int // columns; 0: no bound
	height  int // lines; 0: no bound
	sort    string
	details bool // a line for each disk in use, and for each of several interfaces
	first   int  // index of the first node shown
}

// Sorts returns the sort orders of the table. Figures are sorted from the greatest down, names alphabetically.
func Sorts() []string {
	return []string{"cpu", "memory", "read", "write", "io", "net", "pressure", "name"}
}

// figure returns the figure by which a node is sorted; 0 for the order by name.
func figure(u *top.Use, by string) float64 {
	value := func(all ...*float64) float64 {
		total := 0.0
		for _, v := range all {
			if v != nil {
				total += *v
			}
		}
		return total
	}
	read := sum(u.Disks, func(d top.DiskUse) float64 { return d.ReadBytes })
	write := sum(u.Disks, func(d top.DiskUse) float64 { return d.WriteBytes })
	switch by {
	case "cpu":
		return value(u.CPU)
	case "memory":
		return value(number(u.Memory))
	case "read":
		return value(read)
	case "write":
		return value(write)
	case "io":
		return value(read, write)
	case "net":
		return value(sum(u.Links, func(l top.LinkUse) float64 { return l.RXBits + l.TXBits }))
	case "pressure":
		return value(some(u, func(p *top.PressureUse) *top.StallUse { return p.CPU }),
			some(u, func(p *top.PressureUse) *top.StallUse { return p.Memory }),
			some(u, func(p *top.PressureUse) *top.StallUse { return p.IO }))
	}
	return 0
}

// Sort sorts what nodes use by one of Sorts.
func Sort(all []top.Use, by string) {
	slices.SortStableFunc(all, func(a, b top.Use) int {
		return cmp.Or(cmp.Compare(figure(&b, by), figure(&a, by)), strings.Compare(a.Name, b.Name))
	})
}

// Table returns the lines of a sample, at most width columns wide (0: no bound). by is one of Sorts.
func Table(s *top.Sample, width int, by string) []string {
	return lines(s, view{width: width, sort: by, details: true})
}

// lines returns the lines of a sample.
func lines(s *top.Sample, v view) []string {
	Sort(s.Nodes, v.sort)
	all := head(s, v)
	if len(s.Nodes) == 0 {
		return cutLines(append(all, "", "no node runs"), v)
	}
	shown, name := fitColumns(s.Nodes, v.width)
	all = append(all, "", row("NAME", name, shown, func(c column) string { return c.head }))
	for i := range s.Nodes {
		u := &s.Nodes[i]
		if i < v.first {
			continue
		}
		all = append(all, row(text.Shorten(u.Name+kindMark(u), name), name, shown, func(c column) string {
			if f := c.value(u); f != nil {
				return c.text(*f)
			}
			return "-"
		}))
		if v.details {
			all = append(all, details(u)...)
		}
	}
	return cutLines(all, v)
}

func row(first string, width int, columns []column, cell func(column) string) string {
	var b strings.Builder
	b.WriteString(text.Pad(first, width))
	for _, c := range columns {
		fmt.Fprintf(&b, "%*s", c.width, cell(c))
	}
	return b.String()
}

// kindMark marks a service of the host; "" for a node.
func kindMark(u *top.Use) string {
	return text.Either(u.Kind == top.KindService, " (service)", "")
}

// head returns the two lines above the table: time and counts, and the figures of the host.
func head(s *top.Sample, v view) []string {
	what := text.Count(len(s.Nodes), "node")
	services := 0
	for i := range s.Nodes {
		services += len(kindMark(&s.Nodes[i])) / len(" (service)")
	}
	if services > 0 {
		what = text.Count(len(s.Nodes)-services, "node") + ", " + text.Count(services, "service")
	}
	first := fmt.Sprintf("%s  %s by %s", s.Time.Format(time.TimeOnly), what, v.sort)
	if s.Interval > 0 {
		first += fmt.Sprintf(", over %.1f s", s.Interval.Seconds())
	}
	h := s.Host
	var second strings.Builder
	second.WriteString("host")
	if h.CPU != nil {
		fmt.Fprintf(&second, "  CPU %s%% of %d%%", percentText(*h.CPU), 100*h.CPUs)
	}
	fmt.Fprintf(&second, "  memory %s of %s", binaryText(float64(h.Memory)), binaryText(float64(h.MemoryTotal)))
	if h.Pressure != nil {
		u := &top.Use{Pressure: h.Pressure}
		second.WriteString("  waits")
		for _, c := range allColumns() {
			if f := c.value(u); f != nil {
				fmt.Fprintf(&second, " %s %s%%", c.head, c.text(*f))
			}
		}
	}
	return []string{first, second.String()}
}

// leastName is the width below which names are not cut in favour of columns. Longer names lose their beginning.
const leastName = 14

// fitColumns chooses the columns that fit into width (0: all), and the width of names.
func fitColumns(all []top.Use, width int) (columns []column, name int) {
	longest := len("NAME")
	for i := range all {
		longest = max(longest, utf8.RuneCountInString(all[i].Name+kindMark(&all[i])))
	}
	columns = slices.DeleteFunc(allColumns(), func(c column) bool {
		return !slices.ContainsFunc(all, func(u top.Use) bool { return c.value(&u) != nil })
	})
	if width == 0 {
		return columns, longest
	}
	used := func() int {
		n := 0
		for _, c := range columns {
			n += c.width
		}
		return n
	}
	for len(columns) > 1 && min(longest, leastName)+used() > width {
		last := slices.MaxFunc(columns, func(a, b column) int { return cmp.Compare(a.rank, b.rank) }).rank
		columns = slices.DeleteFunc(columns, func(c column) bool { return c.rank == last })
	}
	return columns, max(min(longest, width-used()), 1)
}

// details returns a line for each disk that a node used, and for each interface if there are several.
func details(u *top.Use) []string {
	var lines []string
	for _, d := range u.Disks {
		if d.ReadOps+d.WriteOps+d.ReadBytes+d.WriteBytes == 0 && (d.Waited == nil || *d.Waited == 0) {
			continue
		}
		line := fmt.Sprintf("  %s: read %sB/s %s IOPS, write %sB/s %s IOPS", d.Disk,
			decimalText(d.ReadBytes), decimalText(d.ReadOps), decimalText(d.WriteBytes), decimalText(d.WriteOps))
		if d.Waited != nil {
			line += ", held back " + percentText(*d.Waited) + "%"
		}
		lines = append(lines, line)
	}
	if len(u.Links) < 2 {
		return lines
	}
	for _, l := range u.Links {
		lines = append(lines, fmt.Sprintf("  %s: rx %sbit/s %s packets/s, tx %sbit/s %s packets/s", l.Link,
			decimalText(l.RXBits), decimalText(l.RXPackets), decimalText(l.TXBits), decimalText(l.TXPackets)))
	}
	return lines
}

// cutLines cuts lines to the height and width of v.
func cutLines(lines []string, v view) []string {
	if v.height > 0 && len(lines) > v.height {
		lines = lines[:v.height]
	}
	for i, l := range lines {
		if r := []rune(l); v.width > 0 && len(r) > v.width {
			lines[i] = string(r[:v.width])
		}
	}
	return lines
}

// percentText writes 0, 0.4, 12, 100 …: at most three characters up to 999.
func percentText(f float64) string {
	if f >= 0.05 && f < 9.95 {
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.0f", f)
}

func countText(f float64) string { return fmt.Sprintf("%.0f", f) }

// decimalText writes a rate in at most five characters: 0, 512, 4.1k, 25.3M, 1.2G.
func decimalText(f float64) string { return scaled(f, 1000, []string{"", "k", "M", "G", "T", "P"}) }

// binaryText writes a size in at most six characters: 512, 96Mi, 3.9Gi.
func binaryText(f float64) string { return scaled(f, 1024, []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"}) }

func scaled(f float64, base float64, units []string) string {
	i := 0
	for ; i < len(units)-1 && math.Round(f) >= base; i++ {
		f /= base
	}
	if i > 0 && f < 99.95 {
		return fmt.Sprintf("%.1f%s", f, units[i])
	}
	return fmt.Sprintf("%.0f%s", f, units[i])
}
