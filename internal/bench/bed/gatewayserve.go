package bed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"berth/internal/bench/side"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// servedAs is the user that the servers of sshfs and sshfs-direct act as.
const servedAs = "nobody"

// sshd is the server of OpenSSH; it wants to be started by its path.
const sshd = "/usr/sbin/sshd"

// serve starts the file server of an arm and returns the mount by which a node reaches the tree.
func (t *treeBed) serve(ctx context.Context, arm string) (vnode.Mount, error) {
	m := vnode.Mount{Source: t.dir, Target: "/mnt/" + arm, Gateway: vnode.BindGateway}
	if arm == bindArm {
		return m, nil
	}
	m.Source = t.host().String() + ":/"
	switch arm {
	case nfsArm:
		m.Gateway, m.Source = vnode.NFSGateway, t.host().String()+":"+t.dir
		if err := t.lab.Mount(ctx, m); err != nil { // no client: no need of a server
			return m, err
		}
		return m, t.export(ctx)
	case sshfsArm:
		m.Gateway, m.Source = vnode.SSHFSGateway, t.host().String()+":"+t.dir
		var err error
		m.Options, err = t.sshServer(ctx)
		return m, err
	}
	m.Gateway = vnode.SSHFSDirectGateway
	port, err := t.freePort()
	if err != nil {
		return m, err
	}
	m.Options = vnode.Options{"port": port}
	if arm == directTuned {
		for _, option := range []string{"direct_io", "no_readahead", "sync"} {
			m.Options[option] = "true"
		}
	}
	argv := append(append([]string{t.lab.Self}, t.lab.Root...), "gateway", "serve", t.dir, "--user", servedAs,
		"--allow", t.subnet.String(), "--listen", net.JoinHostPort(t.host().String(), port))
	return m, t.start(ctx, port, argv)
}

// export lets the kernel's NFS server of this host serve the tree to the nodes, for as long as the bed lasts.
func (t *treeBed) export(ctx context.Context) error {
	if n := side.Word("/proc/fs/nfsd/threads"); n == "" || n == "0" {
		return refuse.Cannotf("apt install nfs-kernel-server, and start it (with systemd: systemctl start nfs-server)", "no NFS server runs on this host")
	}
	if side.Word("/sys/module/nfs/parameters/localio_enabled") == "Y" {
		t.Notes = append(t.Notes, "nfs: this kernel's client reads and writes the files of a server on its own machine itself, past the network (localio); "+
			"echo N >/sys/module/nfs/parameters/localio_enabled measures the protocol")
	}
	what := t.subnet.String() + ":" + t.dir
	if err := os.WriteFile(filepath.Join(t.keys, "export"), []byte(what), 0o600); err != nil { // the last will reads it
		return err
	}
	if _, err := side.Host(ctx, []string{"exportfs", "-o", "rw,sync,insecure,no_subtree_check", what}); err != nil {
		return fmt.Errorf("export the tree by NFS: %w", err)
	}
	return nil
}

// sshServer starts a server of OpenSSH that serves nothing but SFTP, to a key made for it, and returns the options of the mount.
func (t *treeBed) sshServer(ctx context.Context) (vnode.Options, error) {
	for _, program := range []string{sshd, "ssh-keygen"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, refuse.Cannotf("apt install openssh-server", "there is no %s on this host, which serves sshfs", program)
		}
	}
	for _, name := range []string{"host", "user"} {
		if _, err := side.Host(ctx, []string{"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", filepath.Join(t.keys, name)}); err != nil {
			return nil, err
		}
	}
	key, err := os.ReadFile(filepath.Join(t.keys, "host.pub"))
	if err != nil {
		return nil, err
	}
	port, err := t.freePort()
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`ListenAddress %s:%s
HostKey %[3]s/host
AuthorizedKeysFile %[3]s/user.pub
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowTcpForwarding no
PidFile none
MaxStartups 100
AllowUsers %[4]s
Subsystem sftp internal-sftp -u 0
ForceCommand internal-sftp -u 0
`, t.host(), port, t.keys, servedAs)
	known := fmt.Sprintf("[%s]:%s %s", t.host(), port, key)
	if err := os.Mkdir("/run/sshd", 0o755); err == nil { // without it sshd does not start; the last will removes what is ours
		err = os.WriteFile(filepath.Join(t.keys, "sshd"), nil, 0o600)
		if err != nil {
			return nil, err
		}
	} else if !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make the folder of sshd: %w", err)
	}
	for name, text := range map[string]string{"config": config, "known": known} {
		if err := os.WriteFile(filepath.Join(t.keys, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	options := vnode.Options{"port": port, "user": servedAs, "identity": filepath.Join(t.keys, "user"), "known_hosts": filepath.Join(t.keys, "known")}
	return options, t.start(ctx, port, []string{sshd, "-D", "-e", "-f", filepath.Join(t.keys, "config")})
}

// freePort finds a port of the bridge's address that nothing listens at.
func (t *treeBed) freePort() (string, error) { return FreePort(t.host().String()) }

// start runs a file server until the bed is taken apart. It returns when the server takes connections.
func (t *treeBed) start(ctx context.Context, port string, argv []string) error {
	return t.Program(ctx, argv, Takes(net.JoinHostPort(t.host().String(), port)))
}
