package gate

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// fake is a map of the kernel, in words.
type fake map[string]string

func word(v any) string {
	if a, ok := v.([16]byte); ok {
		return netip.AddrFrom16(a).Unmap().String()
	}
	return fmt.Sprint(v)
}

func (f fake) Put(k, v any) error { f[word(k)] = word(v); return nil }
func (f fake) Delete(k any) error { delete(f, word(k)); return nil }

// TestTable: the kernel has the addresses of nodes; a node whose group is made anew has another number.
func TestTable(t *testing.T) {
	table, addresses, nodes := newTable(), fake{}, fake{}
	told := func(all map[string]string) string {
		t.Helper()
		m := map[netip.Addr]string{}
		for a, n := range all {
			m[netip.MustParseAddr(a)] = n
		}
		if err := table.tell(m, addresses, nodes); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(map[string]string(addresses), map[string]string(nodes))
	}
	for i, tt := range []struct {
		all  map[string]string
		anew string
		want string
	}{
		{all: map[string]string{"192.0.2.1": "a"}, want: "map[192.0.2.1:1] map[1:1]"},
		{all: map[string]string{"192.0.2.1": "a", "::ffff:192.0.2.2": "b"}, want: "map[192.0.2.1:1 192.0.2.2:2] map[1:1 2:1]"},
		{all: map[string]string{"2001:db8::1": "a", "192.0.2.1": "b"}, want: "map[192.0.2.1:2 2001:db8::1:1] map[1:1 2:1]"}, // an address goes over
		{all: map[string]string{"2001:db8::1": "a", "192.0.2.1": "b"}, anew: "b", want: "map[192.0.2.1:3 2001:db8::1:1] map[1:1 3:1]"},
		{all: map[string]string{"192.0.2.1": "b"}, want: "map[192.0.2.1:3] map[3:1]"},
		{all: map[string]string{}, anew: "none", want: "map[] map[]"},
	} {
		if err := table.forget(tt.anew, addresses, nodes); err != nil {
			t.Fatal(err)
		}
		if got := told(tt.all); got != tt.want {
			t.Errorf("%d: %s, want %s", i, got, tt.want)
		}
	}
	if len(table.names)+len(table.numbers)+len(table.addresses) > 0 {
		t.Errorf("it keeps %+v", table)
	}
}

// TestID: the kernel has the start of a process in ns, /proc in ticks.
func TestID(t *testing.T) {
	if got, want := (stop{Start: 12_345_678_901}).id(7), (proc.ID{PID: 7, Start: 1234}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestResume: what an agent noted is continued, a process that has its number since is not, and no note is left.
func TestResume(t *testing.T) {
	server := t.TempDir()
	dir := notes(server)
	if err := Resume(server); err != nil { // there was no gate
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mine, other := halted(t), halted(t)
	if err := note(dir, mine); err != nil {
		t.Fatal(err)
	}
	if err := note(dir, proc.ID{PID: other.PID, Start: other.Start - 1}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Resume(server); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "what was noted runs", func() bool { return state(t, mine.PID) == 'S' })
	if s := state(t, other.PID); s != 'T' {
		t.Errorf("a process that nobody noted is in state %c", s)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// TestInitial: the kernel's program knows processes as the host does, so berthd has to.
func TestInitial(t *testing.T) {
	for _, tt := range []struct {
		pid     uint64
		offsets string
		bad     bool
	}{
		{pid: 4026531836, offsets: "monotonic           0         0\nboottime            0         0\n"},
		{pid: 4026531836},
		{pid: 4026532200, bad: true},
		{pid: 4026531836, offsets: "monotonic           0         0\nboottime            7         0\n", bad: true},
		{pid: 4026531836, offsets: "monotonic           0         5\nboottime            0         0\n", bad: true},
	} {
		err := initial(tt.pid, tt.offsets)
		if (err != nil) != tt.bad || tt.bad && refuse.KindOf(err) != refuse.Cannot {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

// TestObject checks that the object is what the source says: by the recorded sums, and by the compiler if it is there.
func TestObject(t *testing.T) { testkit.Object(t, "gate") }
