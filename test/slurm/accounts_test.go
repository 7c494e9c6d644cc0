package slurm

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// TestAccounts: what jobs were limited to and what they used (processor, throttled time, memory, bytes and requests) is in the accounts, as sacct shows them: of each task of an array and of each run of a job that
// was queued again, and also if slurmdbd is away meanwhile.
func TestAccounts(t *testing.T) {
	for program, from := range map[string]string{"slurmdbd": "slurmdbd", "mariadb-install-db": "mariadb-server-core", "my_print_defaults": "mariadb-client-core"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed: apt-get install %s", program, from)
		}
	}
	s := newSite(t, 1)
	s.keepAccounts()

	const burn = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done\n"
	wishes := "berth: memory.max=256MiB,io.data.read.rate=20MB/s"
	plain := s.submit(burn, "--comment="+wishes)
	s.accounted(plain)
	r := s.record(plain)
	if len(r) != 1 || r[0].comment != wishes || r[0].state != "COMPLETED" {
		t.Fatalf("the record of a job is %+v", r)
	}
	if l := r[0].note.Berth.Limits; len(l) != 1 || l[0]["nodes"] != "st01-01" || l[0]["memory.max"] != "256MiB" || !strings.HasPrefix(l[0]["io.data.read.rate"], "20") {
		t.Errorf("it was limited to %v", l)
	}
	first := r[0].used["st01-01"]["cpu_s"]
	t.Logf("sacct says of the first job: %s %s", r[0].admin, r[0].system)
	if first <= 0 || r[0].used["st01-01"]["memory_peak"] < 1<<20 {
		t.Errorf("it used %v", r[0].used)
	}
	s.sameByJSON(plain, r[0])

	const moves = "dd if=/dev/zero of=big bs=1M count=8 oflag=direct 2>/dev/null; dd if=big of=/dev/null bs=1M count=4 iflag=direct 2>/dev/null\n"
	busy := s.submit(moves+burn, "--comment=berth: cpu.max=0.2")
	s.accounted(busy)
	used := s.record(busy)[0].used["st01-01"]
	for column, least := range map[string]float64{"written": 8 << 20, "writes": 8, "read": 4 << 20, "reads": 4, "cpu_s": 0.01, "throttled_s": 0.01} {
		if used[column] < least {
			t.Errorf("a job that wrote 8 MiB, read 4 and had a fifth of a processor used %v: %s is not %v or more", used, column, least)
		}
	}
	if used["written"] > 12<<20 || used["read"] > 8<<20 {
		t.Errorf("a job that wrote 8 MiB and read 4 used %v: that of the job before it counts, too", used)
	}

	array := s.submit(burn, "--array=1-2")
	for _, task := range []string{"_1", "_2"} {
		s.accounted(array + task)
		r := s.record(array + task)
		if len(r) != 1 || r[0].used["st01-01"]["cpu_s"] <= 0 || r[0].system != s.logged(array + task)[0] {
			t.Errorf("task %s: %+v; the log has %v", task, r, s.logged(array+task))
		}
		if l := r[0].note.Berth.Limits; len(l) != 1 || l[0]["memory.max"] != "512MiB" {
			t.Errorf("task %s was limited to %v", task, l)
		}
	}

	again := s.submit(burn + "[ -e again ] && exit; touch again; sleep 300\n")
	s.until("its script runs", func() bool { _, err := os.Stat(s.path("work/again")); return err == nil })
	s.run("scontrol", "requeue", again)
	s.until("its first run is accounted", func() bool { return len(s.logged(again)) == 1 })
	s.until("it is queued again", func() bool { return s.job(again, "JobState") == "PENDING" })
	s.soon(again)
	s.completed(again)
	s.until("both runs have what they used", func() bool { r := s.record(again); return len(r) == 2 && r[0].used != nil && r[1].used != nil })
	r = s.record(again)
	if log := s.logged(again); len(log) != 2 || r[0].system != log[0] || r[1].system != log[1] || log[0] == log[1] || r[0].state != "REQUEUED" {
		t.Errorf("the two runs are %+v; the log has %v", r, log)
	}

	away := s.submit(burn + "touch runs; until [ -e go ]; do sleep 0.1; done\n")
	s.until("the next job runs", func() bool { _, err := os.Stat(s.path("work/runs")); return err == nil })
	s.until("the accounts know of it", func() bool { r := s.record(away); return len(r) == 1 && r[0].state == "RUNNING" })
	s.end("slurmdbd", unix.SIGKILL)
	s.write("work/go", "", 0o644)
	s.completed(away)
	waiting := func() int { all, _ := os.ReadDir(s.path("state/berth-accounts")); return len(all) }
	s.until("what it used waits", func() bool { return waiting() == 1 })
	s.startDBD()
	s.until("slurmctld has told of its end", func() bool { return s.record(away)[0].state == "COMPLETED" })
	if r := s.record(away); r[0].used != nil || len(r[0].note.Berth.Limits) != 1 {
		t.Errorf("before the next job has ended: %+v", r)
	}
	s.accounted(s.submit(burn))
	s.until("nothing waits", func() bool { return waiting() == 0 })
	if r := s.record(away); r[0].system != s.logged(away)[0] || r[0].used["st01-01"]["cpu_s"] <= 0 {
		t.Errorf("slurmdbd came back: %+v; the log has %v", r, s.logged(away))
	}
}

// record is a run of a job as sacct tells of it.
type record struct {
	state, comment, admin, system string

	note struct {
		Berth struct {
			Nodes, Columns []string
			Limits         []map[string]string
		}
	}
	used map[string]map[string]float64 // by node and column
}

// record asks sacct for all runs of a job, and reads what it prints as a site's script would: as JSON.
func (s *site) record(id string) (all []record) {
	s.Helper()
	out := s.run("sacct", "--jobs="+id, "--duplicates", "--allocations", "--noheader", "--parsable2", "--delimiter=\x1f", "--format=State,Comment,AdminComment,SystemComment")
	for line := range strings.Lines(out) {
		words := strings.Split(strings.TrimSuffix(line, "\n"), "\x1f")
		if len(words) != 4 {
			s.Fatalf("sacct prints %q", line)
		}
		r := record{state: words[0], comment: words[1], admin: words[2], system: words[3]}
		if r.admin != "" {
			testkit.Must(s, json.Unmarshal([]byte(r.admin), &r.note))
		}
		if r.system != "" && r.admin != "" {
			var rows [][]float64
			testkit.Must(s, json.Unmarshal([]byte(r.system), &rows))
			r.used = map[string]map[string]float64{}
			for i, name := range r.note.Berth.Nodes {
				r.used[name] = map[string]float64{}
				for j, column := range r.note.Berth.Columns {
					r.used[name][column] = rows[i][j]
				}
			}
		}
		all = append(all, r)
	}
	return all
}

// sameByJSON compares a record with what sacct --json prints.
func (s *site) sameByJSON(id string, r record) {
	s.Helper()
	var all struct {
		Jobs []struct {
			Comment struct{ Administrator, Job, System string }
		}
	}
	testkit.Must(s, json.Unmarshal([]byte(s.run("sacct", "--json", "--jobs="+id)), &all))
	if len(all.Jobs) != 1 || all.Jobs[0].Comment.Administrator != r.admin || all.Jobs[0].Comment.System != r.system || all.Jobs[0].Comment.Job != r.comment {
		s.Errorf("sacct --json has %+v, without --json it has %+v", all.Jobs, r)
	}
}

// accounted waits until a job has ended and what it used is in the accounts.
func (s *site) accounted(id string) {
	s.Helper()
	s.until("what job "+id+" used is in the accounts", func() bool { r := s.record(id); return len(r) == 1 && r[0].used != nil })
}

// logged are the figures of a job in the log of the epilogs, of each run.
func (s *site) logged(id string) (all []string) {
	for _, m := range regexp.MustCompile(`msg=epilog job=`+regexp.QuoteMeta(id)+` nodes=\S+ used=(\S+)`).FindAllStringSubmatch(s.log(), -1) {
		all = append(all, m[1])
	}
	return all
}

// keepAccounts gives the cluster a slurmdbd with a MariaDB, and its jobs a limit for I/O.
func (s *site) keepAccounts() {
	s.Helper()
	s.end("slurmctld", unix.SIGTERM)
	testkit.Must(s, os.Mkdir(s.path("db"), 0o755))
	s.run("chown", s.user, s.path("db"))
	small := []string{
		"--no-defaults", "--datadir=" + s.path("db/data"), "--user=" + s.user, "--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=0",
		"--innodb-log-file-size=8M", "--innodb-buffer-pool-size=16M", "--key-buffer-size=1M", "--performance-schema=off",
	}
	s.run("mariadb-install-db", append(small, "--skip-test-db", "--auth-root-authentication-method=normal")...)
	s.serve("mariadbd", append(append([]string{"mariadbd"}, small...), "--skip-networking", "--socket="+s.dbSocket(), "--pid-file="+s.path("db/pid"),
		"--init-file="+s.write("conf/init.sql", "CREATE USER "+s.user+"@localhost IDENTIFIED VIA unix_socket;\nGRANT ALL ON slurm_acct_db.* TO "+s.user+"@localhost;\n", 0o644))...)
	s.until("mariadbd answers", func() bool { c, err := net.Dial("unix", s.dbSocket()); return err == nil && c.Close() == nil })

	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(s, err)
	port := l.Addr().(*net.TCPAddr).Port
	testkit.Must(s, l.Close())
	s.write("conf/slurmdbd.conf", fmt.Sprintf("AuthType=auth/munge\nAuthInfo=socket=%s\nDbdHost=localhost\nDbdPort=%d\nSlurmUser=%s\nStorageType=accounting_storage/mysql\nStorageUser=%[3]s\nPidFile=%s\n",
		s.socket(), port, s.user, s.path("state/slurmdbd.pid")), 0o600)
	s.run("chown", s.user, s.path("conf/slurmdbd.conf"))
	conf, err := os.ReadFile(s.path("conf/slurm.conf"))
	testkit.Must(s, err)
	s.write("conf/slurm.conf", fmt.Sprintf("%sAccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=localhost\nAccountingStoragePort=%d\nAccountingStoreFlags=job_comment\nAccountingStoragePass=%s\n", conf, port, s.socket()), 0o644)
	s.startDBD()

	template := s.layout.Etc("templates/worker.yaml")
	text, err := os.ReadFile(template)
	testkit.Must(s, err)
	testkit.Must(s, os.WriteFile(template, []byte(strings.Replace(string(text), "parameters:\n", "parameters:\n  read: {sets: io.data.read.rate, type: rate}\n", 1)+
		"  io: [{name: data, path: "+s.path("work")+", read: {rate: 50MB/s}}]\n"), 0o644))
	s.startSlurm()
}

func (s *site) dbSocket() string { return s.path("db/socket") }

func (s *site) startDBD() {
	s.Helper()
	s.serve("slurmdbd", "env", "MYSQL_UNIX_PORT="+s.dbSocket(), "slurmdbd", "-D")
	s.until("slurmdbd answers", func() bool { _, err := s.try("sacctmgr", "--immediate", "show", "cluster"); return err == nil })
}
