package host_test

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"berth/internal/host"
	"berth/test/testkit"
)

// TestReadFacts reads the facts of this host and checks those that every Linux has.
func TestReadFacts(t *testing.T) {
	f, err := host.ReadFacts()
	if err != nil {
		t.Fatal(err)
	}
	if f.BootID == "" || !f.Version.AtLeast(3, 0) {
		t.Errorf("facts are incomplete: %+v", f)
	}
	for id, n := range f.Cgroups.NUMA {
		if n.CPUs == "" && !n.Memory {
			t.Errorf("NUMA node %d has nothing: %v", id, f.Cgroups.NUMA)
		}
	}
}

func BenchmarkReadFacts(b *testing.B) {
	for b.Loop() {
		if _, err := host.ReadFacts(); err != nil {
			b.Fatal(err)
		}
	}
}

// TestDoctorHere runs the real probes. The results differ by host, but each check must be complete.
func TestDoctorHere(t *testing.T) {
	before := namespaces(t)
	start := time.Now()
	checks := host.Doctor(host.New(), host.Try(context.Background(), "/var/lib/berth", "/run/berth", nil, nil))
	t.Logf("%d checks in %v", len(checks), time.Since(start))
	if len(checks) < 30 {
		t.Errorf("only %d checks", len(checks))
	}
	for _, c := range checks {
		if c.Area == "" || c.Name == "" || c.Found == "" || c.Why == "" || c.State == "" {
			t.Errorf("incomplete check: %+v", c)
		}
	}
	if err := host.Text(t.Output(), checks); err != nil {
		t.Error(err)
	}
	if after := namespaces(t); before != after {
		t.Errorf("the network namespace changed from %s to %s", before, after)
	}
}

// TestTryLinks makes real links. As root, on a kernel that has them, nothing may fail.
func TestTryLinks(t *testing.T) {
	testkit.NeedsRoot(t)
	tried := host.Try(context.Background(), "/", "/run", nil, nil)
	checks := host.Doctor(host.New(), tried)
	i := slices.IndexFunc(checks, func(c host.Check) bool { return c.Name == "veth" })
	if checks[i].State == host.Broken {
		t.Errorf("veth: %s", checks[i].Found)
	}
	for name, err := range tried.Calls {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTryStopped checks that Try with a cancelled context does not report links as working.
func TestTryStopped(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if tried := host.Try(ctx, "/", "/run", nil, nil); tried.Links["veth"] == nil || tried.Shaping["tbf"] == nil {
		t.Errorf("links of a stopped probe: %v, %v", tried.Links, tried.Shaping)
	}
}

func namespaces(t *testing.T) string {
	t.Helper()
	ns, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return ns
}
