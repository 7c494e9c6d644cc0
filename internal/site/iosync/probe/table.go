package probe

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"berth/internal/sys/text"
)

// mostOthers is how many peers that are no nodes a table lists.
const mostOthers = 10

// Write writes the result as a table of at most 80 columns, with the leaks below it in exact bytes.
func (r Result) Write(out io.Writer) error {
	fmt.Fprintf(out, "%s on %s, disk %s, %.1f s: %s leaked\n\n", r.FileSystem, r.Server, r.Disk, r.Seconds, text.Human(r.Leaked))
	rows := [][]string{{"NODE", "READ", "LEAKED", "WRITTEN", "LEAKED", "OF OTHERS"}}
	quiet := 0
	for _, n := range r.Nodes {
		if n.quiet() {
			quiet++
			continue
		}
		rows = append(rows, []string{
			n.Name, text.Human(n.Read.Own), text.Human(n.Read.Leaked.Bytes),
			text.Human(n.Write.Own), text.Human(n.Write.Leaked.Bytes), text.Human(n.Polluted.Bytes),
		})
	}
	others := slices.SortedFunc(slices.Values(r.Others), func(a, b Other) int { return cmp.Compare(b.Read+b.Write, a.Read+a.Write) })
	for _, o := range others[:min(len(others), mostOthers)] {
		rows = append(rows, []string{o.Address.String(), text.Human(o.Read), "-", text.Human(o.Write), "-", "-"})
	}
	if err := text.Rows(out, text.Width, rows); err != nil {
		return err
	}
	line := func(head, words string) { text.Wrap(out, text.Width, 12, text.Pad(head, 12), words) }
	if more := len(others) - mostOthers; more > 0 {
		line("", "and "+text.Count(more, "other peer")+" that is no node")
	}
	if quiet > 0 {
		line("", text.Count(quiet, "node")+" asked for nothing")
	}
	fmt.Fprintln(out)
	for _, n := range r.Nodes {
		for _, f := range []struct {
			did    string
			charge Charge
		}{{"reads", n.Read.Leaked}, {"writes", n.Write.Leaked}} {
			if f.charge.Bytes > 0 {
				line("leak", fmt.Sprintf("%s: %d bytes of its %s, charged to %s", n.Name, f.charge.Bytes, f.did, f.charge.list()))
			}
		}
		if n.Polluted.Bytes > 0 {
			line("of others", fmt.Sprintf("%s: %d bytes charged to its group were requests of %s", n.Name, n.Polluted.Bytes, n.Polluted.list()))
		}
	}
	for _, l := range []struct {
		head   string
		charge Charge
		about  string
	}{
		{"unknown", r.Unknown.NoPeer, "of threads that received no request"},
		{"unknown", r.Unknown.Several, "of threads that received no request, in processes that serve several peers"},
		{"unknown", r.Unknown.Kernel, "of the kernel's threads" +
			text.Either(r.Ways.Held(), "; what a limit holds comes from them too, while several peers wait in one group", "")},
		{"writeback", r.Writeback, "what was written to memory before: nobody can say for whom"},
		{"journal", r.Journal, "the file system's own"},
	} {
		if l.charge.Bytes > 0 {
			line(l.head, fmt.Sprintf("%s %s; charged to %s", text.Human(l.charge.Bytes), l.about, l.charge.list()))
		}
	}
	if r.Lost > 0 {
		line("lost", text.Human(r.Lost)+": there are too many peers and groups to count them all")
	}
	line("seen by", r.Ways.Receive+" and "+r.Ways.Submit)
	return nil
}

func (n Node) quiet() bool {
	return n.Read.Own+n.Read.Leaked.Bytes+n.Write.Own+n.Write.Leaked.Bytes+n.Polluted.Bytes == 0
}

// list names the groups, the largest first.
func (c Charge) list() string {
	names := slices.SortedFunc(maps.Keys(c.To), func(a, b string) int {
		return cmp.Or(cmp.Compare(c.To[b], c.To[a]), cmp.Compare(a, b))
	})
	if len(names) == 1 {
		return names[0]
	}
	for i, n := range names {
		names[i] = fmt.Sprintf("%s (%d)", n, c.To[n])
	}
	return strings.Join(names, ", ")
}
