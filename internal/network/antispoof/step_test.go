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
