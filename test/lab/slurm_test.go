package lab_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/test/lab"
	"berth/test/shares"
	"berth/test/testkit"
)

// pool is a Slurm with two hosts: nodes with virtual functions on both, slurmctld, its accounts and the home folders on a.
type pool struct {
	*testing.T
	a, b *lab.VM
	seen *seenSlurm
}

// seenSlurm is what a run measured: seconds.
type seenSlurm struct {
	Command string                        `json:"command"`
	Waits   []float64                     `json:"submission_to_start_s"`       // of 20 jobs for six nodes
	One     map[string][]float64          `json:"berths_part_one_at_a_time_s"` // by program: resume, prolog, suspend
	All     map[string][]float64          `json:"berths_part_20_jobs_s"`
	Down    map[string]map[string]float64 `json:"failures"` // by name: until the node is down, until the job has run
}

// keep stores the figures where evidence is kept.
func (f *seenSlurm) keep(t *testing.T) {
	t.Helper()
	if !shares.Keeps() || t.Failed() {
		return
	}
	text, err := json.MarshalIndent(f, "", "\t")
	testkit.Must(t, err)
	testkit.Must(t, os.WriteFile(filepath.Join(os.Getenv(shares.Folder), "slurm-lab.json"), append(text, '\n'), 0o644))
}

// TestSlurm types the commands of docs/slurm.md on two bare hosts that are a site, and uses the pool that they make.
func TestSlurm(t *testing.T) {
	m := lab.Machine{Memory: 2048, NICs: []lab.NIC{{Segment: "site"}}, Disks: []lab.Disk{{Size: 4 << 30}}}
	l := lab.Start(t, lab.Options{Machines: []lab.Machine{m, m}})
	s := &pool{t, l.VM(0), l.VM(1), &seenSlurm{
		Command: "BERTH_EVIDENCE=FOLDER BERTH_WALK=all go test -count=1 -v -timeout 120m -run 'TestSlurm$' ./test/lab", Down: map[string]map[string]float64{},
	}}
	s.bare()
	s.typePage()
	before := s.left()
	for _, part := range []struct {
		name string
		do   func(*pool, [2]string)
	}{{"one", (*pool).one}, {"jobs", (*pool).jobs}, {"once", (*pool).once}, {"instance", (*pool).instance}, {"failures", (*pool).failures}} {
		t.Run(part.name, func(t *testing.T) { part.do(&pool{t, s.a, s.b, s.seen}, before) })
	}
	s.seen.keep(t)
}

// bare makes the hosts what the page takes for granted.
func (s *pool) bare() {
	t := s.T
	packages(t, s.a, s.b)
	for i, m := range []*lab.VM{s.a, s.b} {
		m.OK(t, `printf '127.0.0.1 localhost\n192.0.2.1 a\n192.0.2.2 b\n' >/etc/hosts; `+bareNetwork(i)+"; vgcreate -q scratch /dev/vdb; dpkg -i /root/new-*.deb")
		choose(t, m, "/var/lib/berth")
	}
	key := s.a.OK(t, "install -d -m 700 /root/.ssh && ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519 && cat /root/.ssh/id_ed25519.pub")
	s.b.OK(t, "install -d -m 700 /root/.ssh && echo '"+strings.TrimSpace(key)+"' >/root/.ssh/authorized_keys && ssh-keygen -A >/dev/null && systemctl start ssh")
	s.a.OK(t, "ssh -o StrictHostKeyChecking=accept-new b true")
	s.a.OK(t, `cd /root; export HOME=/root; berth certs init 192.0.2.1; printf 'store: {embedded: {listen: "192.0.2.1:7612"}}\n' >/etc/berth/berthd.yaml; systemctl enable --now berthd
berth certs issue -o - b 192.0.2.2 | ssh b berth certs install -
printf 'store: {endpoints: ["https://192.0.2.1:7612"]}\n' | ssh b tee /etc/berth/berthd.yaml
ssh b systemctl enable --now berthd; berth certs issue --role admin -o - root | berth certs install -
while awaiting; do berth host ls | grep -q '^b *up' && exit; done; berth host ls; exit 1`)
	s.b.OK(t, "systemctl disable berthd 2>/dev/null") // after a boot it starts once the host has its name
	s.a.OK(t, "useradd -u 100001 -d /home/carol -M carol")
}

// bareNetwork gives a host its name and address, which it has lost after a boot. The adapter's name is udev's.
func bareNetwork(i int) string {
	return fmt.Sprintf("hostname %c; printf '[Match]\\nDriver=igb\\n[Link]\\nName=site0\\n' >/etc/systemd/network/10-site0.link; udevadm settle; [ -e /sys/class/net/site0 ] || ip link set $(ls -d /sys/class/net/*/device/sriov_totalvfs | cut -d/ -f5) name site0; ip link set site0 up; ip addr add 192.0.2.%d/24 dev site0", 'a'+i, 1+i)
}

// typePage types the block of commands of docs/slurm.md.
func (s *pool) typePage() {
	s.Helper()
	page, err := os.ReadFile("../../docs/slurm.md")
	testkit.Must(s.T, err)
	block := regexp.MustCompile("(?s)## From two bare hosts.*?\n```\n(.*?)```").FindSubmatch(page)
	if block == nil {
		s.Fatal("docs/slurm.md has no commands for two bare hosts")
	}
	s.a.Write(s, "/root/page", string(block[1]))
	s.Log(s.a.OK(s, "cd /root; export HOME=/root; bash -ex page 2>&1 >/dev/null || { journalctl -n 30 >&2; exit 1; }"))
	s.a.OK(s, "mount --bind /srv/home /home; install -d -o carol /home/carol; while awaiting; do scontrol ping | grep -q UP && sinfo && exit; done; journalctl -u slurmctld; exit 1")
}

// left tells of each host what jobs could leave behind.
func (s *pool) left() (all [2]string) {
	s.Helper()
	for i, m := range []*lab.VM{s.a, s.b} {
		all[i] = m.OK(s, `lvs --noheadings -o lv_name,lv_tags; ls /sys/fs/cgroup/berth* 2>/dev/null | grep -v '^[a-z]*\.' || true; ls /run/netns /run/berth/nodes /var/lib/berth/nodes 2>/dev/null || true; pgrep -lx 'slurmd|munged|slurmstepd|udhcpc' | wc -l; cat /proc/fs/nfsd/clients/*/info 2>/dev/null | grep -c 'status: confirmed' || true`)
	}
	return all
}

// job is what a job wrote.
type job struct{ id, uid, node, mac, tmp, disk, home, start, end string }

// took is how long Berth's part took since the log had skip lines, in seconds, by program.
func (s *pool) took(skip int) map[string][]float64 {
	s.Helper()
	all := map[string][]float64{}
	for _, m := range regexp.MustCompile(`msg=([a-z]+) .*\btook=(\S+)`).FindAllStringSubmatch(s.a.OK(s, fmt.Sprintf("%s | tail -n +%d", diary, skip+1)), -1) {
		d, err := time.ParseDuration(m[2])
		testkit.Must(s.T, err)
		all[m[1]] = append(all[m[1]], d.Seconds())
	}
	return all
}

// lines is how many lines the log of slurmctld's programs has.
func (s *pool) lines() int {
	s.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(s.a.OK(s, diary+" | wc -l")))
	testkit.Must(s.T, err)
	return n
}

const diary = `journalctl -t berth-slurm -o cat`

const tookAll = `journalctl -t berth-slurm -o cat | grep -o 'msg=[a-z]* .*took=[^ ]*' | sed 's/ .*took=/ /' | sort | uniq -c`

// one has a job run on each host while nothing else is to be done, and tells how long Berth's part took.
func (s *pool) one(before [2]string) {
	defer func(skip int) { s.seen.One = s.took(skip) }(s.lines())
	for _, host := range []string{"a", "b", "a"} { // the first node of a host takes longer: Berth tries the runtimes
		id := strings.TrimSpace(s.a.OK(s, "cd /home/carol; runuser -u carol -- sbatch --parsable --constraint="+host+" --output=/dev/null --wrap true"))
		s.soon("the job has run", "scontrol show job "+id+" | grep -q JobState=COMPLETED")
		s.gone(before)
	}
	s.Log(s.a.OK(s, tookAll))
}

// jobs has a user of the site run 20 jobs on six nodes.
func (s *pool) jobs(before [2]string) {
	const n = 20
	defer func(skip int) { s.seen.All = s.took(skip) }(s.lines())
	s.a.Write(s, "/srv/home/carol/job", `#!/bin/sh
echo $SLURM_JOB_ID $(id -u) $(hostname) $(cat /sys/class/net/eth0/address) $TMPDIR $(df --output=source $TMPDIR | tail -n 1) $(stat -f -c %T .) $(date +%s.%N)
dd if=/dev/zero of=$TMPDIR/f bs=1M count=12 oflag=direct 2>/dev/null
date +%s.%N
`)
	s.a.Write(s, "/srv/home/carol/submit", `cd /home/carol; for i in $(seq 20); do echo $(date +%s.%N) $(sbatch --parsable --output=%j.out --comment="berth: io.scratch.write.rate=6MB/s" job); done`)
	submitted := map[string]float64{}
	for line := range strings.Lines(s.a.OK(s, "chown -R carol /srv/home/carol; runuser -u carol -- sh /home/carol/submit; sinfo >&2")) {
		f := strings.Fields(line)
		if len(f) != 2 {
			s.Fatalf("sbatch: %q", line)
		}
		submitted[f[1]] = seconds(s.T, f[0])
	}
	for began := time.Now(); ; time.Sleep(10 * time.Second) {
		left := s.a.OK(s, "squeue -h -o '%i %t %N %r'")
		if left == "" {
			s.Logf("all jobs have ended after %.0f s", time.Since(began).Seconds())
			break
		}
		if time.Since(began) > 6*time.Minute {
			s.tell()
			s.Fatalf("jobs do not end:\n%s", left)
		}
	}
	out := s.a.OK(s, `cd /srv/home/carol; stat -c %u *.out | sort | uniq -c; for f in *.out; do echo $(cat $f); done`)
	owners, lines, _ := strings.Cut(out, "\n")
	if strings.Join(strings.Fields(owners), " ") != fmt.Sprint(n, " 100001") {
		s.Errorf("owners of the outputs: %s", owners)
	}
	var waits, rates []float64
	nodes := map[string]int{}
	for line := range strings.Lines(lines) {
		f := strings.Fields(line)
		if len(f) != 9 {
			s.tell()
			s.Fatalf("a job printed %q", line)
		}
		j := job{f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8]}
		nodes[j.node+" "+j.mac]++
		if j.uid != "100001" || j.tmp != "/scratch" || !strings.Contains(j.disk, "scratch-berth") || j.home != "nfs" {
			s.Errorf("a job ran so: %+v", j)
		}
		waits = append(waits, seconds(s.T, j.start)-submitted[j.id])
		rates = append(rates, 12*1.048576/(seconds(s.T, j.end)-seconds(s.T, j.start)))
	}
	slices.Sort(waits)
	slices.Sort(rates)
	s.seen.Waits = waits
	s.Logf("%d jobs; nodes and functions: %v", len(waits), nodes)
	s.Logf("submission to start: median %.1f s, p99 %.1f s; write rates %.2f to %.2f MB/s of 6", waits[len(waits)/2], waits[len(waits)-1], rates[0], rates[len(rates)-1])
	if len(waits) != n || len(nodes) != 6 || rates[len(rates)-1] > 6*1.1 {
		s.Errorf("%d jobs ran on %d nodes, not %d on 6, at most at %.2f MB/s", len(waits), len(nodes), n, rates[len(rates)-1])
	}
	s.accounts(n)
	s.Log(s.a.OK(s, tookAll))
	s.gone(before)
}

// once has a user run more jobs than there are functions while slurm.yaml says once: each has a node of its own, and finds nothing of another.
func (s *pool) once(before [2]string) {
	const n = 8
	s.a.OK(s, "echo 'once: true' >>/etc/berth/slurm.yaml")
	defer s.a.OK(s, "sed -i '/^once: true$/d' /etc/berth/slurm.yaml")
	made := func() string { return strings.TrimSpace(s.a.OK(s, diary+" | grep -c 'msg=resume ' || true")) }
	was, err := strconv.Atoi(made())
	testkit.Must(s.T, err)
	s.a.Write(s, "/srv/home/carol/alone", "#!/bin/sh\nls /tmp/left $TMPDIR/left 2>/dev/null\ntouch /tmp/left $TMPDIR/left && echo ran\n")
	s.a.OK(s, fmt.Sprintf("cd /home/carol; rm -f *.out; for i in $(seq %d); do runuser -u carol -- sbatch --parsable --output=%%j.out alone; done", n))
	s.soon("all jobs have ended", "[ -z \"$(squeue -h)\" ]")
	if out := s.a.OK(s, "cd /srv/home/carol; cat *.out"); out != strings.TrimSuffix(strings.Repeat("ran\n", n), "\n") {
		s.Errorf("the jobs printed %q", out)
	}
	if now := made(); now != strconv.Itoa(was+n) {
		s.Errorf("%d nodes had been made before %d jobs, and %s after", was, n, now)
	}
	s.gone(before)
}

// instance has a user bring a node up who knows no command of Slurm's: ssh reaches it, its slot is taken, and down gives it back.
func (s *pool) instance(before [2]string) {
	s.b.OK(s, "id -u carol >/dev/null 2>&1 || useradd -u 100001 -d /home/carol carol") // nodes are of the host's own root
	s.a.Write(s, "/srv/home/carol/visit", `set -e
cd
[ -e .ssh/id_ed25519 ] || { mkdir -p -m 700 .ssh; ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519; }
berth instance up --time 10m >login
id=$(berth instance ls --json | grep -o '"job": *[0-9]*' | grep -o '[0-9]*')
berth instance ssh $id -- 'echo $(id -u) $(hostname) $(stat -f -c %T /home)'
echo $(sinfo -h -N -o %T | grep -c '^allocated')
berth instance down $id >&2
`)
	f := strings.Fields(s.a.OK(s, "runuser -u carol -- env HOME=/home/carol bash /srv/home/carol/visit"))
	if len(f) != 4 || f[0] != "100001" || !regexp.MustCompile(`^[ab]-0[1-3]$`).MatchString(f[1]) || f[2] != "nfs" || f[3] != "1" {
		s.tell()
		s.Errorf("the instance is a node with %q", f)
	}
	s.gone(before)
}

// accounts looks at what sacct knows of the jobs: what they were limited to, and what they wrote.
func (s *pool) accounts(n int) {
	s.Helper()
	text := s.a.OK(s, `sacct -a -X -P -n --name=job -o jobid,state,comment,admincomment,systemcomment`)
	good := 0
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(line), "|", 5)
		var noted struct {
			Berth struct {
				Columns []string
				Limits  []map[string]string
			}
		}
		var used [][]float64
		if len(f) != 5 || f[1] != "COMPLETED" || f[2] != "berth: io.scratch.write.rate=6MB/s" || json.Unmarshal([]byte(f[3]), &noted) != nil ||
			json.Unmarshal([]byte(f[4]), &used) != nil || len(used) != 1 || len(noted.Berth.Limits) != 1 {
			s.Errorf("sacct: %q", line)
			continue
		}
		if rate := noted.Berth.Limits[0]["io.scratch.write.rate"]; rate != "6MB/s" {
			s.Errorf("job %s was limited to %q", f[0], rate)
		}
		if i := slices.Index(noted.Berth.Columns, "written"); i < 0 || i >= len(used[0]) || used[0][i] < 12<<20 || used[0][i] > 15<<20 {
			s.Errorf("job %s used %v of %v", f[0], used[0], noted.Berth.Columns)
		}
		good++
	}
	if good != n {
		s.Errorf("%d of %d jobs are in the accounts", good, n)
	}
	s.Log(text[:min(len(text), 900)])
}

const nodesLogs = `berth ls; for n in $(berth ls --json | grep -o '"name": *"[^"]*"' | cut -d'"' -f4); do berth logs $n | tail -n 5; done`

// tell shows the logs of a pool that does not do what it should.
func (s *pool) tell() {
	s.Helper()
	s.Log(s.a.OK(s, "journalctl -t berth-slurm -o cat | tail -n 40; journalctl -u slurmctld -o cat | tail -n 30; sinfo -N; sinfo -R; squeue; "+nodesLogs))
	s.Log(s.b.OK(s, "journalctl -u berthd -o cat | tail -n 20; "+nodesLogs))
}

func seconds(t *testing.T, text string) float64 {
	t.Helper()
	f, err := strconv.ParseFloat(text, 64)
	testkit.Must(t, err)
	return f
}
