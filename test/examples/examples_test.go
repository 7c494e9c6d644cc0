package examples

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"berth/internal/image/imagetest"
)

// packages are what the examples' images hold, in one root for all of them.
const packages = "postgresql,nginx-light,openssh-server,openssh-client,openmpi-bin,procps,iproute2,sudo,boinc-client,jupyter-notebook"

// apply makes the nodes of an example, with another command if one is given.
func (p *place) apply(example string, command ...string) {
	p.Helper()
	text, err := os.ReadFile(filepath.Join("../../examples", example))
	if err != nil {
		p.Fatal(err)
	}
	text = regexp.MustCompile(`(?m)^image: .*$`).ReplaceAll(text, []byte("image: oci:all"))
	if len(command) > 0 {
		text = regexp.MustCompile(`(?m)^command: .*$`).ReplaceAll(text, []byte("command: ["+strings.Join(command, ", ")+"]"))
	}
	if err := os.WriteFile(filepath.Join(p.dir, example), text, 0o600); err != nil {
		p.Fatal(err)
	}
	p.ok("berth apply -f " + example)
}

// until waits for a command of a node to succeed.
func (p *place) until(command string) {
	p.Helper()
	p.ok(fmt.Sprintf("timeout 120 bash -c 'until %s; do sleep 0.2; done'", command))
}

// elsewhere makes another machine, 192.0.2.2, on a wire with this place's host, 192.0.2.1.
func (p *place) elsewhere() *place {
	p.Helper()
	other := *p
	cmd := exec.Command("nsenter", "--target", p.pid, "--net", "--mount", "unshare", "--net", "sh", "-c", "echo $$ && exec cat")
	other.pid = p.start(cmd)
	p.ok("ip link add wire type veth peer name wire netns " + other.pid)
	p.ok("ip address add 192.0.2.1/24 dev wire && ip link set wire up")
	other.ok("ip address add 192.0.2.2/24 dev wire && ip link set wire up")
	return &other
}

// get asks a web server for its first page.
func get(host string, port int) string {
	return fmt.Sprintf(`exec 3<>/dev/tcp/%s/%d && printf "GET / HTTP/1.0\r\n\r\n" >&3 && cat <&3`, host, port)
}

// TestSmall runs the node of an example with busybox's web server, for which nothing is fetched from elsewhere.
func TestSmall(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	other := p.elsewhere()
	p.ok("berth image import " + imagetest.Busybox(t) + " all")
	p.ok("mkdir -p /srv/www && echo hello >/srv/www/index.html")
	p.apply("nginx.yaml", "httpd", "-f", "-p", "80", "-h", "/var/www/html")
	p.until("berth exec nginx -- grep -q :0050 /proc/net/tcp /proc/net/tcp6") // it listens at port 80
	p.says("hello", get("127.0.0.1", 8080))
	other.says("hello", get("192.0.2.1", 8080))
}

// TestExamples runs the nodes of examples/.
func TestExamples(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.ok("mmdebstrap --variant=minbase --include=" + packages + " bookworm all.tar")
	p.ok("berth image import all.tar all && rm all.tar")
	for _, e := range []struct {
		name string
		test func(*place)
	}{
		{"nginx", nginx}, {"postgresql", postgresql}, {"sshd", sshd}, {"mpi", mpi}, {"boinc", boinc}, {"jupyter", jupyter},
	} {
		t.Run(e.name, func(t *testing.T) {
			at := *p
			at.T = t
			e.test(&at)
			at.removeNodes()
		})
	}
}

// nginx is reached through its port from the host's loopback and from another machine.
func nginx(p *place) {
	other := p.elsewhere()
	p.ok("mkdir -p /srv/www && echo hello >/srv/www/index.html")
	p.apply("nginx.yaml")
	p.until("berth exec nginx -- test -s /run/nginx.pid")
	p.says("hello", get("127.0.0.1", 8080))
	other.says("hello", get("192.0.2.1", 8080))
}

// postgresql runs as its own user, and its data survive a restart.
func postgresql(p *place) {
	p.ok("mkdir -m 700 /srv/db && mkdir /srv/db/data")
	prepare := "berth run --image oci:all --mount /srv/db/data:/data "
	p.ok(prepare + "-- chown postgres /data")
	p.ok(prepare + "--user postgres -- /usr/lib/postgresql/15/bin/initdb -D /data")
	p.apply("postgresql.yaml")
	p.until("berth exec postgresql -- pg_isready")
	p.says("postgres", "berth exec postgresql -- whoami")
	p.says("CREATE", `berth exec postgresql -- psql -c "create table t (x int); insert into t values (4711)" -c "create table u()"`)
	p.ok("berth restart postgresql")
	p.says("database system is shut down", "berth logs postgresql")
	p.until("berth exec postgresql -- pg_isready")
	p.says("4711", `berth exec postgresql -- psql -tc "select x from t"`)
	p.says("postgres", "berth exec postgresql -- stat -c %U /data/PG_VERSION")
}

// sshd lets a user in who comes from another node and knows it by name.
func sshd(p *place) {
	p.ok("mkdir /srv/sshd /srv/client")
	p.ok("berth run --image oci:all --mount /srv/client:/keys -- ssh-keygen -q -t ed25519 -N '' -f /keys/key")
	p.ok("cp /srv/client/key.pub /srv/sshd/authorized_keys")
	p.apply("sshd.yaml")
	p.until("berth exec sshd -- grep -q :0016 /proc/net/tcp") // it listens at port 22
	client := "berth run --image oci:all --network nat --mount /srv/client:/keys:ro -- "
	p.says("sshd", client+"ssh -i /keys/key -o StrictHostKeyChecking=no root@sshd hostname")
}

// mpi runs a program on two nodes by their names.
func mpi(p *place) {
	p.ok("mkdir -m 700 /srv/mpi")
	p.ok("berth run --image oci:all --mount /srv/mpi:/keys -- ssh-keygen -q -t ed25519 -N '' -f /keys/id_ed25519")
	p.ok("cp /srv/mpi/id_ed25519.pub /srv/mpi/authorized_keys && echo StrictHostKeyChecking no >/srv/mpi/config")
	p.apply("mpi.yaml")
	for _, node := range []string{"mpi-1", "mpi-2"} {
		p.until("berth exec " + node + " -- grep -q :0016 /proc/net/tcp")
	}
	out := p.ok("berth exec mpi-1 -- mpirun --allow-run-as-root --host mpi-1,mpi-2 hostname")
	for _, node := range []string{"mpi-1", "mpi-2"} {
		if !strings.Contains(out, node) {
			p.Errorf("no %s in %q", node, out)
		}
	}
}

// boinc reports its memory: the host's, unless a file like those of LXCFS is bound over /proc/meminfo.
func boinc(p *place) {
	p.ok("printf 'MemTotal: 524288 kB\\nMemFree: 500000 kB\\n' >/srv/meminfo")
	p.ok("printf 'name: view\nimage: oci:all\ncommand: [free, -m]\nmounts: [{source: /srv/meminfo, target: /proc/meminfo, read_only: true, map: identity}]\n' >view.yaml")
	p.says(" 512 ", "berth run -f view.yaml")
	p.apply("boinc.yaml")
	p.until(`berth exec --user boinc --workdir /var/lib/boinc-client boinc -- boinccmd --get_host_info`)
	p.says("mem size", `berth exec --user boinc --workdir /var/lib/boinc-client boinc -- boinccmd --get_host_info`)
}

// jupyter answers at its port.
func jupyter(p *place) {
	p.ok("mkdir -p /srv/notebooks && chown 1000:1000 /srv/notebooks")
	p.apply("jupyter.yaml")
	p.until("berth logs jupyter 2>&1 | grep -q token=")
	p.says("Jupyter", strings.Replace(get("127.0.0.1", 8888), "GET /", "GET /login", 1))
}
