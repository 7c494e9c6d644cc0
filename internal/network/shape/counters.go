package shape

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Count is what an interface of a node has received and sent so far.
type Count struct {
	Name                 string
	RXBytes, TXBytes     int64
	RXPackets, TXPackets int64
}

// Counts reads the counters of the interfaces in the network namespace of a process, without entering it. It leaves out
// loopback and Berth's ifbs.
func Counts(pid int) ([]Count, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/net/dev")
	if err != nil {
		return nil, fmt.Errorf("read network counters: %w", err)
	}
	return parseCounts(string(text)), nil
}

// parseCounts reads lines of the form "eth0: bytes packets errs drop fifo frame compressed multicast", followed by the
// same eight counters for sent frames.
func parseCounts(text string) []Count {
	all := []Count{}
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, ":")
		name = strings.TrimSpace(name)
		f := strings.Fields(rest)
		if !ok || name == "lo" || strings.HasPrefix(name, ifbPrefix) || len(f) < 10 {
			continue
		}
		c := Count{Name: name}
		for i, p := range map[int]*int64{0: &c.RXBytes, 1: &c.RXPackets, 8: &c.TXBytes, 9: &c.TXPackets} {
			*p, _ = strconv.ParseInt(f[i], 10, 64) // the kernel writes numbers only
		}
		all = append(all, c)
	}
	return all
}
