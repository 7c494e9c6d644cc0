package access

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/image"
	"berth/internal/image/imagetest"
	"berth/internal/node"
	"berth/internal/node/events"
	"berth/internal/node/records"
	"berth/internal/site/api"
	"berth/internal/spec/roles"
	templates "berth/internal/spec/template"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// free is a template with a free command and no rights; backup has a fixed command, a secret and a mount that it writes as the host's root.
const (
	free = `parameters:
  command: {sets: command, type: list, pattern: ".*", length: 400}
  memory:  {sets: memory.max, type: size, max: 64MiB, default: 64MiB}
node:
  image: oci:base
  memory: {max: 64MiB}
`
	backup = `parameters:
  memory: {sets: memory.max, type: size, max: 64MiB, default: 64MiB}
  user:   {sets: env.JOB_USER, type: string, default: nobody}
  args:   {sets: args, type: list, pattern: "[0-9]*"}
node:
  image: oci:base
  command: [/usr/bin/backup]
  env_from: SECRET
  memory: {max: 64MiB}
  mounts: [{source: WRITTEN, target: /written}]
`
	// plant is a program for /usr/bin/backup that takes what the template backup has.
	plant = `mkdir -p /usr/bin; printf '#!/bin/sh\necho "$PASSWORD" > /written/stolen\nexec sleep 600\n' > /usr/bin/backup; chmod 755 /usr/bin/backup; exec sleep 600`
)

// rights is a host with these templates, an image and what the template backup gives.
type rights struct {
	*host
	written string // the folder that the template backup mounts
	secret  string
}

func newRights(t *testing.T) *rights {
	t.Helper()
	h := &rights{host: serve(t)}
	h.written, h.secret = filepath.Join(h.Root, "written"), h.Layout().Etc("secret")
	testkit.Must(t, os.Mkdir(h.written, 0o755))
	testkit.Must(t, os.WriteFile(h.secret, []byte("PASSWORD=swordfish\n"), 0o600))
	return h
}

// importAs gives an image of busybox a name; another version is another image.
func (h *rights) importAs(t *testing.T, name, version string) {
	t.Helper()
	i := imagetest.BusyboxImage(t)
	i.Layers = append(i.Layers, imagetest.Layer(t, imagetest.Entry{Name: "etc/version", Data: version, Type: tar.TypeReg, Mode: 0o644}))
	_, err := image.Open(h.Layout()).Import(t.Context(), imagetest.OCIArchive(t, i), image.As{Name: name}, nil)
	testkit.Must(t, err)
}

func (h *rights) template(t *testing.T, name, text string) {
	t.Helper()
	text = strings.NewReplacer("SECRET", h.secret, "WRITTEN", h.written).Replace(text)
	testkit.Must(t, os.WriteFile(h.Layout().Etc("templates/"+name+".yaml"), []byte(text), 0o644))
}

// fill makes bob's node "job" of a template.
func (h *rights) fill(t *testing.T, template string, parameters map[string]any) (*node.Outcome, error) {
	return h.nodes.ApplyTemplate(t.Context(), operator("bob"), template, "job", parameters, 0)
}

// plant makes the node from the template free, with a program in it that waits for the rights of backup.
func (h *rights) plant(t *testing.T) {
	t.Helper()
	_, err := h.fill(t, "free", map[string]any{"command": []any{"/bin/sh", "-c", plant}})
	testkit.Must(t, err)
	program := filepath.Join(h.Layout().Node("job").Delta(), "upper/usr/bin/backup")
	testkit.Eventually(t, "the program is in the delta", func() bool {
		st, err := os.Stat(program)
		return err == nil && st.Mode().Perm() == 0o755
	})
}

// refused checks that nothing happened but a refusal that names what differs.
func (h *rights) refused(t *testing.T, did func() error, names ...string) {
	t.Helper()
	before, pid := h.state(t), h.process()
	err := did()
	if refuse.KindOf(err) != refuse.Busy || !strings.Contains(err.Error(), "berth rm job") {
		t.Fatalf("not refused with exit 5 and what to do: %v", err)
	}
	for _, name := range names {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%q is not named: %v", name, err)
		}
	}
	if diff := cmp.Diff(before, h.state(t)); diff != "" || h.process() != pid {
		t.Errorf("it is not as it was: process %s, then %s\n%s", pid, h.process(), diff)
	}
	if left, _ := os.ReadDir(h.written); len(left) > 0 {
		t.Errorf("somebody wrote the mount: %v", left)
	}
}

// process is the number of the node's process 1; "" if it does not run.
func (h *rights) process() string {
	pid, _ := os.ReadFile(h.Layout().Node("job").PIDFile())
	return string(pid)
}

// TestRights: what stays of a node carries the rights that it was written with.
func TestRights(t *testing.T) {
	h := newRights(t)
	for name, test := range map[string]func(*rights, *testing.T){
		"another template": (*rights).another, "the same template": (*rights).same, "an older node": (*rights).older, "by policy": (*rights).policy,
	} {
		h.importAs(t, "base", "v1")
		h.template(t, "free", free)
		h.template(t, "backup", backup)
		t.Run(name, func(t *testing.T) {
			test(h, t)
			testkit.Must(t, h.nodes.Remove(t.Context(), "job", true, ""))
		})
	}
}

// another: what an operator wrote under one template does not run with the rights of another, nor of the same one after
// an admin's edit.
func (h *rights) another(t *testing.T) {
	t.Helper()
	h.plant(t)
	apply := func(template string) func() error {
		return func() error { _, err := h.fill(t, template, map[string]any{}); return err }
	}
	h.refused(t, apply("backup"), "command", "env_from", "mounts")
	_, err := h.nodes.Stop(t.Context(), "job", 0, "bob")
	testkit.Must(t, err)
	h.refused(t, apply("backup"), "command", "env_from", "mounts")
	var p api.Problem
	status, text := h.ask(t, "bob", "POST", "/v1/templates/backup/nodes", asJSON, `{"name": "job"}`)
	testkit.Must(t, json.Unmarshal([]byte(text), &p))
	if told := (&refuse.Error{Kind: refuse.Kind(p.Code), What: p.Detail, Remedy: p.Remedy}); status != 409 || !templates.Refused(told) { // as a client has it
		t.Errorf("over TLS: %d %s", status, text)
	}

	h.template(t, "free", strings.Replace(free, "image: oci:base", "image: oci:base\n  mounts: [{source: WRITTEN, target: /written}]", 1))
	h.refused(t, func() error {
		_, err := h.fill(t, "free", map[string]any{"command": []any{"/usr/bin/backup"}})
		return err
	}, "mounts")

	testkit.Must(t, h.nodes.Remove(t.Context(), "job", true, "bob"))
	h.template(t, "backup", strings.Replace(backup, "/usr/bin/backup", "/bin/sleep, \"600\"", 1))
	testkit.Must(t, apply("backup")())
}

// same: a node goes on with the same template, with other parameters, and with limits that an admin edited.
func (h *rights) same(t *testing.T) {
	t.Helper()
	sleep := func(seconds string, more map[string]any) map[string]any {
		all := map[string]any{"command": []any{"/bin/sleep", seconds}}
		maps.Copy(all, more)
		return all
	}
	steps := []struct {
		parameters map[string]any
		did        string
		before     func()
	}{
		{sleep("600", nil), "created", nil},
		{sleep("600", map[string]any{"memory": "32MiB"}), "changed", nil},
		{sleep("601", nil), "restarted", nil},
		{sleep("601", nil), "changed", func() {
			h.template(t, "free", "description: of another day\n"+strings.ReplaceAll(free, "64MiB", "48MiB")+"  restart: always\n  pids: 100\n")
		}},
		{sleep("601", nil), "unchanged", func() { h.importAs(t, "base", "v2") }}, // it runs on with the image that it has
	}
	for _, s := range steps {
		if s.before != nil {
			s.before()
		}
		o, err := h.fill(t, "free", s.parameters)
		if err != nil || o.Did != s.did {
			t.Fatalf("%v: %+v, %v; want %s", s.parameters, o, err, s.did)
		}
	}
	h.refused(t, func() error { _, err := h.fill(t, "free", sleep("602", nil)); return err }, "image")
	h.refused(t, func() error { _, err := h.nodes.Restart(t.Context(), "job", 0, "bob"); return err }, "image")
	_, err := h.nodes.Stop(t.Context(), "job", 0, "bob")
	testkit.Must(t, err)
	h.refused(t, func() error { _, err := h.fill(t, "free", sleep("601", nil)); return err }, "image")
	h.refused(t, func() error { _, err := h.nodes.Start(t.Context(), "job", "bob"); return err }, "image")
	_, err = h.nodes.Start(t.Context(), "job", "") // an admin is asked nothing
	testkit.Must(t, err)
}

// older: a node of which no rights were kept goes on with its own template, unless what the template gives differs from what
// the node has; it has no other one's rights, and none of an admin's free spec.
func (h *rights) older(t *testing.T) {
	t.Helper()
	h.template(t, "backup", strings.Replace(backup, "/usr/bin/backup", "/bin/sleep", 1))
	as := func(args string) func() error {
		return func() error {
			_, err := h.fill(t, "backup", map[string]any{"args": []any{args}, "user": "u" + args})
			return err
		}
	}
	forget := func() { // as an older berth stored it
		t.Helper()
		s, err := h.nodes.Stored("job")
		testkit.Must(t, err)
		testkit.Must(t, h.nodes.Store("job", &records.Stored{Applied: s.Applied, Now: s.Now}))
	}
	testkit.Must(t, as("600")())
	forget()
	testkit.Must(t, as("601")())
	if s, err := h.nodes.Stored("job"); err != nil || len(s.Rights) == 0 {
		t.Errorf("its rights are not kept from then on: %+v, %v", s, err)
	}
	forget()
	h.template(t, "twin", strings.Replace(backup, "/usr/bin/backup", "/bin/sleep", 1))
	h.refused(t, func() error {
		_, err := h.fill(t, "twin", map[string]any{"args": []any{"601"}, "user": "u601"})
		return err
	}, "template backup")
	h.template(t, "backup", strings.Replace(backup, "/usr/bin/backup, ", "/bin/sleep", 1))
	h.refused(t, as("601"), "command")
	h.template(t, "backup", strings.NewReplacer("/usr/bin/backup", "/bin/sleep", "/written}", "/elsewhere}").Replace(backup))
	h.refused(t, as("601"), "mounts")

	testkit.Must(t, h.nodes.Remove(t.Context(), "job", true, "bob"))
	spec := fmt.Sprintf("name: job\nimage: oci:base\ncommand: [/bin/sleep, \"600\"]\nlabels: {%s: bob}\n", roles.OwnerLabel)
	_, err := h.nodes.Apply(t.Context(), "spec", []byte(spec), false)
	testkit.Must(t, err)
	h.refused(t, as("600"), "free spec")
}

// policy: a restart policy and autostart start a node of a template over the image that it has written over, and over no other: that is refused with an
// event, and the node stays stopped.
func (h *rights) policy(t *testing.T) {
	t.Helper()
	h.template(t, "free", free+"  restart: always\n  autostart: true\n")
	_, err := h.fill(t, "free", map[string]any{"command": []any{"/bin/sleep", "600"}})
	testkit.Must(t, err)
	end := func() {
		t.Helper()
		_, err := h.nodes.Kill(t.Context(), "job", unix.SIGKILL)
		testkit.Must(t, err)
	}
	autostarts := func() error {
		out, err := h.Command("start", "--autostart").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
	refused := func() (n int) {
		testkit.Must(t, h.nodes.Events().Tell(t.Context(), events.Wish{Past: true}, func(e events.Event) error {
			if e.Event == events.Refused && e.Node == "job" && strings.Contains(e.Text, "image oci:base is another one now") && strings.Contains(e.Text, "berth rm job") {
				n++
			}
			return nil
		}))
		return n
	}
	h.importAs(t, "base", "v2")
	end()
	testkit.Eventually(t, "the keeper's restart is refused, and it is stopped", func() bool {
		d, err := h.nodes.Node(t.Context(), "job", "")
		testkit.Must(t, err)
		return refused() == 1 && d.State == node.Stopped && !d.Restarting
	})
	var exit *exec.ExitError
	if err := autostarts(); !errors.As(err, &exit) || exit.ExitCode() != int(refuse.Busy) || !strings.Contains(err.Error(), "berth rm job") || refused() != 2 {
		t.Errorf("autostart: %v, %d events", err, refused())
	}

	h.importAs(t, "base", "v1") // the one that it was made from
	testkit.Must(t, autostarts())
	pid := h.process()
	end()
	testkit.Eventually(t, "the keeper restarts it", func() bool { now := h.process(); return now != "" && now != pid })
}
