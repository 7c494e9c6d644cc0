package wish

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/spec/template"
	"berth/internal/sys/refuse"
)

func TestParse(t *testing.T) {
	for comment, want := range map[string]Wishes{
		"":                     nil,
		"my third run":         nil,
		" berth: cpu.max=1":    nil, // it does not begin so
		"berth:cpu.max=1":      {"cpu.max": "1"},
		"berth: cpu.max=0.5, ": nil,
		"berth: memory.max=1GiB, io.data.read.rate=50MB/s,pids=100": {"memory.max": "1GiB", "io.data.read.rate": "50MB/s", "pids": "100"},
	} {
		got, err := Parse(comment)
		if strings.HasSuffix(comment, ", ") {
			if err == nil {
				t.Errorf("%q is taken", comment)
			}
			continue
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v\n%s", comment, err, diff)
		}
	}
}

// hostile are comments with which a user tries to get what his template does not give.
func hostile() []string {
	return []string{
		"berth:", "berth: ", "berth:cpu.max", "berth:=1", "berth:cpu.max=", "berth:cpu.max=1,cpu.max=64",
		"berth:mounts=/", "berth:image=host", "berth:command=/bin/sh", "berth:args=-c", "berth:env.LD_PRELOAD=1", "berth:labels.berth.owner=0", "berth:user=0",
		"berth:user_namespace=0", "berth:devices=0", "berth:unsafe=1", "berth:class=0", "berth:cpu.max=-1", "berth:cpu.max=+1", "berth:cpu.max=max", "berth:cpu.max=1e9",
		"berth:memory.max=1GiB\nmounts=/", "berth:memory.max=1GiB\x00", "berth:memory.max=$(id)", "berth:memory.max=`id`", "berth:memory.max=1;id", "berth:memory.max=1|id",
		"berth:memory.max=\"1GiB\"", "berth:memory.max='1GiB'", "berth:memory.max={}", "berth:memory.max=[1]", "berth:memory.max=1 GiB", "berth:memory.max=١", "berth:memory.max=1GiB#",
		"berth:cpu.max.x.y.z=1", "berth:cpu..max=1", "berth:../cpu.max=1", "berth:CPU.max=1", "berth:сpu.max=1", "berth:io.data.read.rate=1MB/s UserId=root(0)",
		"berth:" + strings.Repeat("a", 2000), "berth:" + strings.Repeat("pids=1,", 100), "berth:oom_score_adj=0", "berth:restart=1", "berth:autostart=1",
	}
}

// lowered are the parameters of a template that lets jobs lower limits, and choose other things that are not for comments.
func lowered() map[string]template.Parameter {
	return map[string]template.Parameter{
		"cpus": {Sets: "cpu.max", Type: template.Number}, "memory": {Sets: "memory.max", Type: template.Size}, "read": {Sets: "io.data.read.rate", Type: template.Rate},
		"image": {Sets: "image", Type: template.Choice}, "queue": {Sets: "labels.queue", Type: template.Integer}, "rank": {Sets: "env.RANK", Type: template.Integer},
		"word": {Sets: "command[1]", Type: template.Integer},
	}
}

func TestHostile(t *testing.T) {
	for _, comment := range hostile() {
		w, err := Parse(comment)
		if err == nil {
			var p map[string]any
			if p, err = w.Parameters(lowered()); err == nil && comment != "berth:cpu.max=1e9" { // the agent reads numbers strictly
				t.Errorf("%.80q becomes %v", comment, p)
			}
		}
		if err != nil && refuse.KindOf(err) != refuse.Invalid {
			t.Errorf("%.80q: %v", comment, err)
		}
	}
}

func TestParameters(t *testing.T) {
	got, err := Wishes{"cpu.max": "1", "io.data.read.rate": "5MB/s"}.Parameters(lowered())
	if diff := cmp.Diff(map[string]any{"cpus": "1", "read": "5MB/s"}, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	_, err = Wishes{"io.data.write.rate": "5MB/s"}.Parameters(lowered())
	if err == nil || !strings.Contains(err.Error(), "did you mean") && !strings.Contains(err.Error(), "it has cpu.max") {
		t.Errorf("%v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, comment := range hostile() {
		f.Add(comment)
	}
	f.Fuzz(func(t *testing.T, comment string) {
		w, err := Parse(comment)
		if err != nil {
			return
		}
		if len(w) > mostWishes {
			t.Fatalf("%d wishes", len(w))
		}
		p, err := w.Parameters(lowered())
		if err != nil {
			return
		}
		for name, value := range p {
			if name != "cpus" && name != "memory" && name != "read" || strings.ContainsAny(value.(string), " \n\x00'\"$;|&") {
				t.Fatalf("%q sets %s to %q", comment, name, value)
			}
		}
	})
}
