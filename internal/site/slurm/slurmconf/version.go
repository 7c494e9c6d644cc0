package slurmconf

import (
	"fmt"
	"regexp"
	"strconv"
	"sync"

	"berth/internal/sys/refuse"
)

// Version is a release of Slurm: year and month.
type Version struct{ Year, Month int }

// The releases between which Berth tells apart.
var (
	// Oldest is the oldest release that has what the files need: a time of suspension for each partition, for one. The files are
	// given to this release's slurmctld in this package's tests.
	Oldest = Version{22, 5}
	// Newest is the newest release whose slurm.conf(5) was read. Its slurmctld has not read the files.
	Newest = Version{26, 5}

	showsCloud    = Version{23, 2} // from here on nodes that are not there are shown without PrivateData=cloud
	exclusiveNode = Version{26, 5} // Exclusive=NODE replaces OverSubscribe=EXCLUSIVE
	weighsAbsent  = Version{26, 5} // its guide says that weights count among nodes that are not there, too; 22.05 does not do it
)

var release = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:^|[^0-9.])(\d\d)\.(\d\d)(?:[.\s-]|$)`) })

// ParseVersion reads a release, also as slurmctld -V prints it: "22.05", "slurm-wlm 22.05.8".
func ParseVersion(text string) (Version, error) {
	m := release().FindStringSubmatch(text)
	if m == nil {
		return Version{}, refuse.Invalidf("%.80q is no version of Slurm: want one as 22.05", text)
	}
	year, _ := strconv.Atoi(m[1])
	month, _ := strconv.Atoi(m[2])
	v := Version{year, month}
	if v.before(Oldest) {
		return v, refuse.Cannotf("nodes on demand need Slurm "+Oldest.String()+" or newer", "Slurm %s is too old", v)
	}
	return v, nil
}

func (v Version) String() string { return fmt.Sprintf("%02d.%02d", v.Year, v.Month) }

func (v Version) before(w Version) bool {
	return v.Year < w.Year || v.Year == w.Year && v.Month < w.Month
}
