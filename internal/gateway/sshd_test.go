package gateway_test

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/internal/gateway"
	"berth/internal/gateway/gatewaytest"
	"berth/internal/vnode"
)

// sshd is an OpenSSH server at 127.0.0.1 that takes one key for user nobody.
type sshd struct {
	options vnode.Options // of a mount from it
	pid     int
}

func startSSHD(t *testing.T) sshd {
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
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(free.Addr().(*net.TCPAddr).Port)
	free.Close()
	config := fmt.Sprintf(`ListenAddress 127.0.0.1:%s
HostKey %[2]s/host
AuthorizedKeysFile %[2]s/user.pub
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PidFile none
AllowUsers nobody
Subsystem sftp internal-sftp -u 0
`, port, dir)
	host, err := os.ReadFile(dir + "/host.pub")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"config": config, "known": "[127.0.0.1]:" + port + " " + string(host)} {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("/usr/sbin/sshd", "-D", "-e", "-f", dir+"/config")
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("sshd: %s", log.String())
		}
	})
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			c.Close()
			break
		}
		if time.Since(began) > 20*time.Second {
			t.Fatal(err)
		}
	}
	return sshd{options: vnode.Options{"port": port, "user": "nobody", "identity": dir + "/user", "known_hosts": dir + "/known"}, pid: cmd.Process.Pid}
}

func TestSSHFS(t *testing.T) {
	server := startSSHD(t)
	served := func(folder func(*testing.T) gatewaytest.Source) func(t *testing.T) gatewaytest.Source {
		return func(t *testing.T) gatewaytest.Source {
			s := nobodys(t, folder(t))
			s.Name, s.Options = "127.0.0.1:"+s.Dir, server.options
			return s
		}
	}
	gatewaytest.Suite{Gateway: gateway.SSHFS{}, Source: served(gatewaytest.Folder), Small: served(gatewaytest.SmallFolder), Files: 1000}.Run(t)
}

// TestSSHFSLogin: a server that cannot show that it is the one, and a key that it does not take, are told, and nothing is left.
func TestSSHFSLogin(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a file system")
	}
	one, other := startSSHD(t), startSSHD(t)
	for name, c := range map[string]struct{ key, of, text string }{
		"another server": {"known_hosts", other.options["known_hosts"], "Host key verification failed"},
		"another key":    {"identity", other.options["identity"], "Permission denied"},
		"root":           {"user", "root", "Permission denied"},
	} {
		o := maps.Clone(one.options)
		o[c.key] = c.of
		if err := gatewaytest.Refused(t, gateway.SSHFS{}, gatewaytest.Source{Name: "127.0.0.1:/", Dir: gatewaytest.Folder(t).Dir, Options: o}); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %q", name, err, c.text)
		}
	}
}
