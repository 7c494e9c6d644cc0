package settings

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Limit is the longest time of a job, as Slurm writes it: minutes, D-HH:MM:SS, or UNLIMITED.
type Limit string

var slurmTime = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\A(\d+-\d{1,2}(:\d{2}){0,2}|\d+:\d{2}(:\d{2})?)\z`)
})

// UnmarshalText takes a length of time (90m, 24h), days (7d), one of Slurm's own forms with a colon or dash, or "unlimited". A bare
// number is refused: Slurm reads it as minutes, and its author may have meant seconds or hours.
func (l *Limit) UnmarshalText(text []byte) error {
	s := string(text)
	days, isDays := strings.CutSuffix(s, "d")
	switch n, err := strconv.Atoi(days); {
	case strings.EqualFold(s, "unlimited"):
		*l = "UNLIMITED"
		return nil
	case isDays && err == nil && n > 0 && n <= 3650:
		*l = Limit(fmt.Sprintf("%d-00:00:00", n))
		return nil
	case slurmTime().MatchString(s):
		*l = Limit(s)
		return nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < time.Minute || d%time.Minute != 0 || d > 3650*24*time.Hour {
		return fmt.Errorf("%.40q is not a limit of time: whole minutes, hours or days (90m, 24h, 7d), Slurm's 7-00:00:00, or unlimited", s)
	}
	minutes := int(d / time.Minute)
	*l = Limit(fmt.Sprintf("%d-%02d:%02d:00", minutes/1440, minutes/60%24, minutes%60))
	return nil
}
