package compiled

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"berth/internal/sys/refuse"
)

// TestRefused: a person reads what the kernel refuses, the first line of why, and what else can be done.
func TestRefused(t *testing.T) {
	o := &Object{what: "the gate", instead: "; else use way launch"}
	for _, tt := range []struct {
		err       error
		says, not string
	}{
		{fmt.Errorf("load: %w", btf.ErrNotFound), "it takes a kernel with BTF", "issue"},
		{fmt.Errorf("attach: %w", ebpf.ErrNotSupported), "it takes a kernel with BTF", "issue"},
		{fmt.Errorf("load: %w (MEMLOCK may be too low)", os.ErrInvalid), "file an issue", "MEMLOCK"},
		{&ebpf.VerifierError{Cause: errors.New("bad"), Log: []string{"0: R1 type=ctx", "1: more"}}, "bad: 0: R1 type=ctx", "more"},
		{fmt.Errorf("load: %w", os.ErrPermission), map[bool]string{true: "a policy of this host", false: "sudo"}[os.Geteuid() == 0], "BTF"},
	} {
		err := o.Refused("its maps", tt.err)
		said := err.Error()
		if !strings.Contains(said, "this kernel refuses the gate: its maps: ") || !strings.Contains(said, tt.says) ||
			!strings.Contains(said, "; else use way launch") || strings.Contains(said, tt.not) || refuse.KindOf(err) != refuse.Cannot {
			t.Errorf("of %v it says %s", tt.err, said)
		}
	}
}
