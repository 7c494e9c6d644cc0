package bed

import (
	"context"
	"errors"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"berth/internal/sys/refuse"
)

// program is a program that measures, as it is found in the arms.
type program struct {
	Name         string
	major, minor int    // of the oldest version that will do
	why          string // what older ones lack
	remedy       string // which installs it
}

// FIO is the program of experiments that run fio.
var FIO = &fioProgram

// The programs that experiments use.
var (
	fioProgram    = program{"fio", 3, 0, "no nanoseconds in its JSON", "apt-get install fio"}
	iperfProgram  = program{"iperf3", 3, 1, "no JSON of the receiver's count", "apt-get install iperf3"}
	stressProgram = program{"stress-ng", 0, 11, "no table of rates", "apt-get install stress-ng"}
	db12Program   = program{"db12", 1, 0, "", "pip install db12 (into /usr/local, where nodes of image host see it)"}
)

var versionNumber = regexp.MustCompile(`(\d+)\.(\d+)`)

// Version returns what the program calls itself in all arms: "fio-3.33". It refuses where it is missing or too old, and
// where the arms do not have the same.
func (p program) Version(ctx context.Context, arms []Arm) (string, error) {
	first := ""
	for _, a := range arms {
		if a.Run == nil {
			continue // nothing is measured in it
		}
		out, err := a.Run(ctx, []string{p.Name, "--version"})
		said, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		v, _, _ := strings.Cut(said, " (") // "iperf 3.12 (cJSON 1.7.15)"
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case errors.Is(err, exec.ErrNotFound):
			return "", refuse.Cannotf(p.remedy, "%s, which does the measuring, is not installed", p.Name)
		case err != nil:
			return "", refuse.Cannotf(p.remedy+", where the node's image has none: in the image", "%s does not run in the arm %s: %w", p.Name, a.Name, err)
		case !p.enough(v):
			return "", refuse.Cannotf(p.remedy, "%q in the arm %s is too old: %s %d.%d or newer is needed", v, a.Name, p.Name, p.major, p.minor)
		case first != "" && v != first:
			return "", refuse.Cannotf("use one version in both, as image host does", "the arms do not have the same %s: %s and, in the arm %s, %s", p.Name, first, a.Name, v)
		}
		first = v
	}
	return first, nil
}

func (p program) enough(version string) bool {
	m := versionNumber.FindStringSubmatch(version)
	if m == nil {
		return false
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	return major > p.major || major == p.major && minor >= p.minor
}
