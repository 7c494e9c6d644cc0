package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/internal/jsonfile"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

// ParseRow reads the name of a row as reports have it: "read 32K x512" (random), "write 4K x1" (sequential); "randread",
// "randwrite", "seqread" and "seqwrite" say it in full.
func ParseRow(name string) (Row, error) {
	shapes := map[string]Shape{
		"read": RandomRead, "write": SequentialWrite, "randread": RandomRead, "seqread": SequentialRead,
		"seqwrite": SequentialWrite, "randwrite": RandomWrite,
	}
	f := strings.Fields(name)
	if len(f) == 3 && shapes[f[0]] != "" && strings.HasPrefix(f[2], "x") {
		size := f[1]
		if strings.HasSuffix(size, "K") || strings.HasSuffix(size, "M") {
			size += "iB"
		}
		block, err := vnode.ParseBytes(size)
		jobs, err2 := strconv.Atoi(f[2][1:])
		if err == nil && err2 == nil && block > 0 && jobs > 0 {
			return Row{Name: name, Shape: shapes[f[0]], Block: int64(block), Jobs: jobs}, nil
		}
	}
	return Row{}, refuse.Invalidf("row %q: want its name as a report has it, for example %q", name, "read 32K x512")
}

// Judged is a row of an earlier report, with what it takes to run it again.
type Judged struct {
	Row       Row
	Penalty   *Comparison
	Target    Target
	Run, Warm time.Duration
	MarginPct float64
}

// ReadJudged reads the rows of a report's JSON, of berth bench disk or berth bench run, in which a node's IOPS were
// compared with the host's. Rows that are not one fio job on one file or device are left out.
func ReadJudged(path string) ([]Judged, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, refuse.NotFoundf("no report: %w", err)
	}
	var head struct {
		Format string `json:"format"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return nil, refuse.Invalidf("%s is not a report of berth bench: %s", path, jsonfile.Wrong(text, err))
	}
	switch head.Format {
	case Format:
		var r Report
		err = jsonfile.File{Path: path, Is: "a report of berth bench", Kind: refuse.Invalid}.Decode(text, &r)
		return r.judged(), err
	case StudyFormat:
		var s Study
		err = jsonfile.File{Path: path, Is: "a report of berth bench", Kind: refuse.Invalid}.Decode(text, &s)
		return s.judged(), err
	}
	return nil, refuse.Invalidf("%s is a report of format %q: want %s or %s", path, head.Format, Format, StudyFormat)
}

func (r *Report) judged() []Judged {
	var all []Judged
	for _, row := range r.Rows {
		if row.Penalty != nil {
			all = append(all, Judged{row.Row, row.Penalty, r.Target, millisOf(r.RunMillis), millisOf(r.Warm), r.MarginPct})
		}
	}
	return all
}

func (s *Study) judged() []Judged {
	var all []Judged
	for _, e := range s.Experiments {
		for _, row := range e.Rows {
			r, path, ok := fromCommand(row.Name, row.Command)
			at := slices.IndexFunc(e.Targets, func(d DiskUsed) bool { return d.Path == path || path == "" && len(e.Targets) == 1 })
			if !ok || at < 0 {
				continue
			}
			for _, c := range row.Compared {
				if c.Arm == nodeArm && c.Measure == "iops" {
					all = append(all, Judged{r, c.Penalty, e.Targets[at].Target, millisOf(e.Design.RunMillis), millisOf(e.Design.WarmMillis), s.MarginPct})
				}
			}
		}
	}
	return all
}

func millisOf(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// fromCommand reads a row from its fio call; ok is false for what this package's own jobs cannot do.
func fromCommand(name string, argv []string) (r Row, path string, ok bool) {
	r = Row{Name: name, Jobs: 1}
	names := 0
	for _, a := range argv {
		flag, v, _ := strings.Cut(a, "=")
		var err error
		switch flag {
		case "--rw":
			r.Shape = Shape(v)
		case "--bs":
			r.Block, err = strconv.ParseInt(v, 10, 64)
		case "--numjobs":
			r.Jobs, err = strconv.Atoi(v)
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
	known := slices.Contains([]Shape{RandomRead, SequentialRead, RandomWrite, SequentialWrite}, r.Shape)
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
		if j.Penalty.Verdict == Worse && (worst == nil || j.Penalty.PenaltyPct > worst.Penalty.PenaltyPct) {
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

// Folder is the folder of a file that was measured, "" for a device.
func (t Target) Folder() string {
	if t.Kind != "file" {
		return ""
	}
	return filepath.Dir(t.Path)
}
