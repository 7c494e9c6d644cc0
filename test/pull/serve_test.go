package pull

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"berth/internal/image/imagetest"
	"berth/test/built"
	"berth/test/pair"
	"berth/test/testkit"
)

// served is a rig whose own images are served by berth image serve.
type served struct {
	*rig
	at string // HOST:PORT
}

func newServed(t *testing.T, args ...string) *served {
	t.Helper()
	r := newRoot(t)
	testkit.Must(r, built.Registry(t.Context(), r.Dir()))
	s := &served{rig: r}
	archive := imagetest.DockerArchive(t, "any", imagetest.Image{
		Config: imagetest.Config{Cmd: []string{"/bin/busybox", "echo", "hello from the other host"}},
		Layers: append(imagetest.BusyboxImage(t).Layers, noise(t, 1, 3<<20), noise(t, 2, 3<<20)),
	})
	r.ends(0, "3 layers", "image", "import", archive, "team/worker:1.2")
	s.start(append([]string{"image", "serve", "--listen", "127.0.0.1:0"}, args...)...)
	return s
}

// start starts the server, and waits until it says where it listens.
func (s *served) start(args ...string) {
	s.Helper()
	cmd := s.Command(args...)
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	testkit.Must(s, err)
	testkit.Must(s, cmd.Start())
	s.stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			s.Errorf("the server ended with %v", err)
		}
		if s.Failed() {
			s.Logf("the server:\n%s", &log)
		}
	}
	s.Cleanup(s.stop)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		s.Fatalf("the server says nothing: %v\n%s", err, &log)
	}
	_, where, _ := strings.Cut(strings.TrimSpace(line), " at ")
	u, err := url.Parse(where)
	testkit.Must(s, err)
	s.at = u.Host
}

// other is a second host: a root of its own with the same programs.
func (s *served) other() *rig {
	r := *s.rig
	r.Root = filepath.Join(s.Dir(), "other")
	return &r
}

// client runs a program of the host's, and returns what it prints. HOME and its storage are of this test.
func (s *served) client(args ...string) string {
	s.Helper()
	if _, err := exec.LookPath(args[0]); err != nil {
		s.Skipf("no %s on this host", args[0])
	}
	cmd := exec.CommandContext(s.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "HOME="+s.Dir(), "XDG_RUNTIME_DIR="+s.Dir())
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		s.Fatalf("%s: %v\n%s%s", strings.Join(args, " "), err, out, &errs)
	}
	return string(out)
}

// TestServe pulls from berth image serve with berth, podman and skopeo, and breaks off in the middle.
func TestServe(t *testing.T) {
	s := newServed(t)
	other := s.other()
	ref := s.at + "/team/worker:1.2"
	t.Run("berth", func(t *testing.T) {
		other.T = t
		w := newWire(t, s.at)
		behind := w.Addr().String() + "/team/worker:1.2"
		w.restart(4<<20, 0)
		other.ends(1, "the same command goes on from there", "image", "pull", behind)
		other.nothing()
		kept := other.kept()
		w.restart(0, 0)
		other.ends(0, "3 layers", "image", "pull", behind, "--name", "worker")
		// Bytes that were there are not sent again: the second pull got the rest by ranges.
		size := layers(t, s)
		if sent := w.sent.Load(); kept < 1<<20 || sent > size-kept+overhead {
			t.Errorf("of %d bytes %d were there after the first pull, and the second was sent %d", size, kept, sent)
		}
		other.ends(0, "hello from the other host", "run", "--image", "oci:worker")
		other.ends(4, "has no", "image", "pull", s.at+"/team/worker:3")
		other.ends(4, "has no", "image", "pull", s.at+"/nobody:1")
	})
	t.Run("podman", func(t *testing.T) {
		s := &served{rig: &rig{T: t, Berth: s.Berth}, at: s.at}
		podman := []string{"podman", "--root", filepath.Join(s.Dir(), "podman"), "--runroot", filepath.Join(s.Dir(), "podman.run"), "--storage-driver", "vfs"}
		id := strings.TrimSpace(s.client(append(podman, "pull", "-q", "--tls-verify=false", ref)...))
		text := s.client(append(podman, "image", "inspect", id, "--format", "{{json .Config.Cmd}} {{len .RootFS.Layers}}")...)
		if strings.TrimSpace(text) != `["/bin/busybox","echo","hello from the other host"] 3` {
			t.Errorf("podman has %s", text)
		}
	})
	t.Run("skopeo", func(t *testing.T) {
		s := &served{rig: &rig{T: t, Berth: s.Berth}, at: s.at}
		var is struct {
			Digest   string
			RepoTags []string
			Layers   []string
		}
		testkit.Must(s, json.Unmarshal([]byte(s.client("skopeo", "inspect", "--tls-verify=false", "docker://"+ref)), &is))
		if len(is.RepoTags) != 1 || is.RepoTags[0] != "1.2" || len(is.Layers) != 3 {
			t.Errorf("skopeo sees %+v", is)
		}
		copied := filepath.Join(s.Dir(), "copied")
		s.client("skopeo", "copy", "--src-tls-verify=false", "docker://"+s.at+"/team/worker@"+is.Digest, "oci:"+copied)
		r := *other
		r.T = t
		r.ends(0, "3 layers", "image", "import", copied, "copied")
		r.ends(0, "hello from the other host", "run", "--image", "oci:copied")
	})
	t.Run("killed", func(t *testing.T) {
		s.ends(0, "", "repair") // makes the folders that it looks into
		before := tree(t, s.Root)
		k := &served{rig: s.rig}
		cmd := k.Command("image", "serve", "--listen", "127.0.0.1:0")
		out, err := cmd.StdoutPipe()
		testkit.Must(k, err)
		testkit.Must(k, cmd.Start())
		_, err = bufio.NewReader(out).ReadString('\n')
		testkit.Must(k, err)
		testkit.Must(k, cmd.Process.Kill())
		_ = cmd.Wait()
		s.ends(0, "", "repair")
		if after := tree(t, s.Root); after != before {
			t.Errorf("a killed server left\n%s\nbefore there was\n%s", after, before)
		}
	})
}

// tree lists the names in the image store.
func tree(t *testing.T, root string) string {
	out, err := exec.Command("find", filepath.Join(root, "lib/images"), "-maxdepth", "3").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// layers returns the bytes of the layers as they are served.
func layers(t *testing.T, s *served) int64 {
	resp, err := http.Get("http://" + s.at + "/v2/team/worker/manifests/1.2")
	testkit.Must(s, err)
	defer resp.Body.Close()
	var m struct{ Layers []struct{ Size int64 } }
	if err := json.NewDecoder(resp.Body).Decode(&m); err != nil {
		t.Fatal(err)
	}
	sum := int64(0)
	for _, l := range m.Layers {
		sum += l.Size
	}
	return sum
}

// TestServeTLS serves beyond the loopback, with TLS alone.
func TestServeTLS(t *testing.T) {
	cert, key := pair.Make(t, net.IPv4(127, 0, 0, 1))
	s := newServed(t, "--tls-cert", cert, "--tls-key", key)
	s.ends(2, "by TLS only; give --tls-cert and --tls-key, or listen on the loopback", "image", "serve", "--listen", "0.0.0.0:0")
	s.ends(2, "belong together", "image", "serve", "--listen", "0.0.0.0:0", "--tls-cert", cert)
	s.ends(5, "the port is in use", "image", "serve", "--listen", s.at)
	other := s.other()
	ref := s.at + "/team/worker:1.2"
	other.ends(1, "the certificate of "+s.at+" is not trusted", "image", "pull", ref)
	other.ends(0, "3 layers", "image", "pull", ref, "--tls-verify=false")
	t.Run("skopeo", func(t *testing.T) {
		s := &served{rig: &rig{T: t, Berth: s.Berth}, at: s.at}
		certs := filepath.Join(s.Dir(), "certs")
		testkit.Must(s, os.Mkdir(certs, 0o755))
		testkit.Must(s, os.Symlink(cert, filepath.Join(certs, "ca.crt")))
		s.client("skopeo", "copy", "--src-cert-dir", certs, "docker://"+ref, "oci:"+filepath.Join(s.Dir(), "secure"))
	})
	testkit.Must(s, os.Remove(filepath.Join(s.Dir(), "berth-registry")))
	t.Setenv("PATH", "/nonexistent")
	s.ends(3, "images are served by the program berth-registry, and there is none beside", "image", "serve")
}
