package antispoof

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/sys/refuse"
)

// TestAntiSpoofOfAnOlderKernel checks that missing kernel support is refused with a remedy.
func TestAntiSpoofOfAnOlderKernel(t *testing.T) {
	a := &Step{Inside: netif.Inside{If: "eth0"}}
	for _, e := range []error{unix.ENOENT, unix.EOPNOTSUPP, unix.ENOSYS, unix.EPERM} {
		err := a.refused(fmt.Errorf("add qdisc clsact to eth0: %w", e))
		if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "spoof: true") {
			t.Errorf("%v: %v", e, err)
		}
	}
	if err := a.refused(unix.ENODEV); !errors.Is(err, unix.ENODEV) || refuse.KindOf(err) == refuse.Cannot {
		t.Error(err)
	}
}

// TestExpectedOfLease: between the end of a lease and the program that follows it, and between the program for a new one and the file that
// keeps it, the check is there.
func TestExpectedOfLease(t *testing.T) {
	before, err := leased.Tag()
	if err != nil {
		t.Fatal(err)
	}
	after, err := asking.Tag()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		step      Step
		now, want string
	}{
		{Step{Lease: "lease.eth0", Tag: before}, before, before},
		{Step{Lease: "lease.eth0", Tag: before}, "", after}, // none
		{Step{Tag: before}, before, before},
		{Step{Tag: before}, after, before}, // no lease that changes
		{Step{}, before, after},            // of an older Berth
	} {
		got, err := c.step.expected(c.now, func() (Rules, error) { return asking, nil })
		if err != nil || got != c.want {
			t.Errorf("%+v, attached %q: %q, %v, want %q", c.step, c.now, got, err, c.want)
		}
	}
}
