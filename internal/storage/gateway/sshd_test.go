package gateway_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/storage/gateway/gatewaytest"
	"berth/test/testkit"
)

// sshd is an OpenSSH server that takes one key for user nobody.
type sshd struct {
	ip      string        // of the loopback
	options vnode.Options // of a mount from it
	dir     string        // of its configuration
	cmd     *exec.Cmd
	said    *bytes.Buffer
}

func startSSHD(t *testing.T) *sshd {
	t.Helper()
	for _, program := range []string{"/usr/sbin/sshd", "ssh-keygen", "sshfs"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s", program)
		}
	}
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // sshd reads the key as the user
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir("/run/sshd", 0o755); err == nil {
		t.Cleanup(func() { _ = os.Remove("/run/sshd") })
	}
	for _, key := range []string{"host", "user"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", key, "-f", dir+"/"+key).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	address := testkit.Free(t, 1)[0]
	ip, port, _ := strings.Cut(address, ":")
	config := fmt.Sprintf(`ListenAddress %s
HostKey %[2]s/host
AuthorizedKeysFile %[2]s/user.pub
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PidFile none
AllowUsers nobody
Subsystem sftp internal-sftp -u 0
`, address, dir)
	host, err := os.ReadFile(dir + "/host.pub")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"config": config, "known": "[" + ip + "]:" + port + " " + string(host)} {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := &sshd{ip: ip, options: vnode.Options{"port": port, "user": "nobody", "identity": dir + "/user", "known_hosts": dir + "/known"}, dir: dir}
	s.start(t)
	t.Cleanup(func() {
		s.end(t)
		if t.Failed() {
			t.Logf("sshd: %s", s.said.String())
		}
	})
	return s
}

// start starts the server, and waits until it answers.
func (s *sshd) start(t *testing.T) {
	t.Helper()
	s.cmd, s.said = exec.Command("/usr/sbin/sshd", "-D", "-e", "-f", s.dir+"/config"), &bytes.Buffer{}
	s.cmd.Stderr = s.said
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "sshd answers", func() bool {
		c, err := net.Dial("tcp", s.ip+":"+s.options["port"])
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// end ends the server and the sessions that it holds: they have its output, and would be waited for.
func (s *sshd) end(t *testing.T) (sessions int) {
	t.Helper()
	below := descendants(s.cmd.Process.Pid)
	_ = s.cmd.Process.Kill()
	for _, pid := range below {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Error(err)
		}
	}
	_ = s.cmd.Wait()
	return len(below)
}

// descendants lists the processes below one: a session of sshd's is three, one below the other.
func descendants(pid int) (all []int) {
	children, _ := exec.Command("pgrep", "-P", strconv.Itoa(pid)).Output() // fails if there is none
	for c := range strings.FieldsSeq(string(children)) {
		if child, err := strconv.Atoi(c); err == nil {
			all = append(append(all, child), descendants(child)...)
		}
	}
	return all
}

// restart ends the server and starts it again.
func (s *sshd) restart(t *testing.T) {
	t.Helper()
	if s.end(t) == 0 {
		t.Error("the server held no session")
	}
	s.start(t)
}

func TestSSHFS(t *testing.T) {
	server := startSSHD(t)
	served := func(folder func(*testing.T) gatewaytest.Source) func(t *testing.T) gatewaytest.Source {
		return func(t *testing.T) gatewaytest.Source {
			s := nobodys(t, folder(t))
			s.Name, s.Options = server.ip+":"+s.Dir, server.options
			return s
		}
	}
	gatewaytest.Suite{Gateway: gateway.SSHFS{}, Source: served(gatewaytest.Folder), Small: served(gatewaytest.SmallFolder), Files: files(t, 0), Kept: kept(), Restart: server.restart}.Run(t)
}

// TestSSHFSLogin: a server that cannot show that it is the one, and a key that it does not take, are told, and nothing is left.
func TestSSHFSLogin(t *testing.T) {
	testkit.NeedsRoot(t)
	one, other := startSSHD(t), startSSHD(t)
	for name, c := range map[string]struct{ key, of, text string }{
		"another server": {"known_hosts", other.options["known_hosts"], "Host key verification failed"},
		"another key":    {"identity", other.options["identity"], "Permission denied"},
		"root":           {"user", "root", "Permission denied"},
	} {
		o := maps.Clone(one.options)
		o[c.key] = c.of
		if err := gatewaytest.Refused(t, gateway.SSHFS{}, gatewaytest.Source{Name: one.ip + ":/", Dir: gatewaytest.Folder(t).Dir, Options: o}); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %q", name, err, c.text)
		}
	}
}
