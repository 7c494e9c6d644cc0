package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/bench/stat"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// ParseRow reads the name of a row as reports have it: "read 32K x512" (random), "write 4K x1" (sequential); "randread",
// "randwrite", "seqread" and "seqwrite" say it in full.
func ParseRow(name string) (bed.Job, error) {
	patterns := map[string]string{
		"read": "randread", "write": "write", "randread": "randread", "seqread": "read", "seqwrite": "write", "randwrite": "randwrite",
	}
	f := strings.Fields(name)
	if len(f) == 3 && patterns[f[0]] != "" && strings.HasPrefix(f[2], "x") {
		size := f[1]
		if strings.HasSuffix(size, "K") || strings.HasSuffix(size, "M") {
			size += "iB"
		}
		block, err := vnode.ParseBytes(size)
		threads, err2 := strconv.Atoi(f[2][1:])
		if err == nil && err2 == nil && block > 0 && threads > 0 {
			return bed.Job{Name: name, Pattern: patterns[f[0]], Block: int64(block), Threads: threads}, nil
		}
	}
	return bed.Job{}, refuse.Invalidf("row %q: want its name as a report has it, for example %q", name, "read 32K x512")
}

// Judged is a row of an earlier report, with what it takes to run it again.
type Judged struct {
	Row       bed.Job
	Penalty   *stat.Comparison
	Target    result.Target
	Run, Warm time.Duration
	MarginPct float64
}

// JudgedRows returns the rows of a study in which a node's IOPS were compared with the host's. Rows that are not one fio job on
// one file or device are left out.
func JudgedRows(s *result.Study) []Judged {
	var all []Judged
	for _, e := range s.Experiments {
		for _, row := range e.Rows {
			r, path, ok := fromCommand(row.Name, row.Command)
			at := slices.IndexFunc(e.Targets, func(d result.DiskUsed) bool { return d.Path == path || path == "" && len(e.Targets) == 1 })
			if !ok || at < 0 {
				continue
			}
			for _, c := range row.Compared {
				if c.Arm == result.Node && c.Measure == "iops" {
					all = append(all, Judged{r, c.Penalty, e.Targets[at].Target, millisOf(e.Design.RunMillis), millisOf(e.Design.WarmMillis), s.MarginPct})
				}
			}
		}
	}
	return all
}

// fromCommand reads a row from its fio call; ok is false for what this package's own jobs cannot do.
func fromCommand(name string, argv []string) (r bed.Job, path string, ok bool) {
	r = bed.Job{Name: name, Threads: 1}
	names := 0
	for _, a := range argv {
		flag, v, _ := strings.Cut(a, "=")
		var err error
		switch flag {
		case "--rw":
			r.Pattern = v
		case "--bs":
			r.Block, err = strconv.ParseInt(v, 10, 64)
		case "--numjobs":
			r.Threads, err = strconv.Atoi(v)
		case "--filename":
			names++
			path = strings.ReplaceAll(v, `\:`, ":")
		case "--iodepth":
			ok = v == "1"
			if !ok {
				return r, "", false
			}
		case "--create_on_open": // the file is made anew by each trial
			return r, "", false
		}
		if err != nil {
			return r, "", false
		}
	}
	known := slices.Contains([]string{"randread", "read", "randwrite", "write"}, r.Pattern)
	return r, path, known && r.Block > 0 && names <= 1
}

// Choose picks the row that is to be explained: the one that is named, else the one that lost most of those judged worse.
func Choose(all []Judged, name string) (Judged, error) {
	var worst *Judged
	var names []string
	for i, j := range all {
		if j.Row.Name == name {
			return j, nil
		}
		names = append(names, fmt.Sprintf("%q", j.Row.Name))
		if j.Penalty.Verdict == stat.Worse && (worst == nil || j.Penalty.PenaltyPct > worst.Penalty.PenaltyPct) {
			worst = &all[i]
		}
	}
	switch {
	case name != "":
		return Judged{}, refuse.NotFoundf("the report has no row %q that can be run again; it has %s", name, strings.Join(names, ", "))
	case worst == nil:
		return Judged{}, refuse.NotFoundf("no row of the report was judged worse; name one to take it apart all the same: %s", strings.Join(names, ", "))
	}
	return *worst, nil
}
