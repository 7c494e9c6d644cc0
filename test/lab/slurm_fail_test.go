package lab_test

import (
	"strings"
	"testing"
	"time"

	"berth/test/sample"
)

// trouble is something that fails below a job on host b, until it is mended.
type trouble struct {
	name, reason string // of the node, while it is down: a regular expression
	begin, mend  func(*pool)
	when         moment
}

// moment is when a trouble begins.
type moment int

const (
	first  moment = iota // before the job is submitted
	making               // while slurm-resume works on its node
	inJob                // while the job runs
)

var troubles = []trouble{
	{name: "no function free", reason: "berth: ", begin: func(s *pool) {
		s.b.Write(s, "/root/taker.yaml", "name: taker\nimage: host\ncommand: [sleep, infinity]\nnetwork: [{mode: sriov, parent: site0}, {name: eth1, mode: sriov, parent: site0}, {name: eth2, mode: sriov, parent: site0}]\n")
		s.b.OK(s, "berth apply -f /root/taker.yaml")
	}, mend: func(s *pool) { s.b.OK(s, "berth rm --force taker") }},
	{name: "cable pulled", reason: "berth: ", begin: func(s *pool) { s.b.UnplugCable(s, 0) }, mend: func(s *pool) { s.b.PlugCable(s, 0) }},
	{
		name: "cable pulled while a node is made", reason: "berth: |ResumeTimeout reached", when: making,
		begin: func(s *pool) { s.b.UnplugCable(s, 0) }, mend: func(s *pool) { s.b.PlugCable(s, 0) },
	},
	{name: "slurm-resume killed", reason: "ResumeTimeout reached", when: making, begin: func(s *pool) { s.a.OK(s, "pkill -KILL -f "+resumes) }, mend: func(*pool) {}},
	{name: "agent down", reason: "berth: ", begin: func(s *pool) { s.b.OK(s, "systemctl stop berthd") }, mend: func(s *pool) { s.b.OK(s, "systemctl start berthd") }},
	{
		name: "node killed", reason: "berth: it is gone", when: inJob,
		begin: func(s *pool) {
			s.b.OK(s, `berth rm --force $(berth ls --json | grep -o '"name": *"[^"]*"' | cut -d'"' -f4)`)
		},
		mend: func(*pool) {},
	},
	{
		name: "wrong munge key", reason: "ResumeTimeout reached|berth: its command ended",
		begin: func(s *pool) {
			s.b.OK(s, "cd /etc/berth/slurm-node; cp -p munge.key munge.key.own; dd if=/dev/urandom of=munge.key bs=1k count=1 conv=notrunc 2>/dev/null")
		},
		mend: func(s *pool) { s.b.OK(s, "cd /etc/berth/slurm-node; mv munge.key.own munge.key") },
	},
	{
		name: "image missing", reason: "berth: ", begin: func(s *pool) {
			s.b.OK(s, "sed -i 's/image: host/image: oci:nothing-here/' /etc/berth/templates/worker.yaml")
		},
		mend: func(s *pool) {
			s.b.OK(s, "sed -i 's/image: oci:nothing-here/image: host/' /etc/berth/templates/worker.yaml")
		},
	},
	{name: "cluster state away", reason: "berth: ", begin: func(s *pool) { s.a.OK(s, "systemctl stop berthd") }, mend: func(s *pool) { s.a.OK(s, "systemctl start berthd") }},
	{name: "host reset", reason: "berth: it ", when: inJob, begin: func(s *pool) { s.b.Kill() }, mend: func(s *pool) {
		s.b.Boot(s)
		s.b.OK(s, bareNetwork(1)+"; systemctl start ssh munge; systemctl restart berthd; while awaiting; do berth host ls >/dev/null 2>&1 && exit; done; exit 1")
	}},
}

// resumes is the command line of slurm-resume. The brackets keep pkill and pgrep from finding the shell that runs them.
const resumes = "'[s]lurm-resume b-'"

// failures has something fail below a job: the node is told as down, the job is queued again and runs, and nothing is left.
func (s *pool) failures(was [2]string) {
	for _, c := range sample.Some(sample.Of(s.T), 1, troubles...) {
		s.Run(c.name, func(t *testing.T) {
			s := &pool{t, s.a, s.b, s.seen}
			if c.when == first {
				c.begin(s)
			}
			long := "1"
			if c.when == inJob {
				long = "300"
			}
			id := strings.TrimSpace(s.a.OK(t, `cd /home/carol; runuser -u carol -- sbatch --parsable --constraint=b --output=%j.out --wrap 'hostname; [ -e again ] || { touch again; sleep `+long+`; }'`))
			began := time.Now()
			switch c.when {
			case making:
				s.a.OK(t, "while awaiting; do pgrep -f "+resumes+" && exit; done; echo slurm-resume was not seen; exit 1")
				c.begin(s)
			case inJob:
				s.soon("the job runs", "scontrol show job "+id+" | grep -q JobState=RUNNING && [ -e /home/carol/again ]")
				began = time.Now()
				c.begin(s)
				c.mend(s) // a host tells when it is back
			case first:
			}
			s.soon("its node is down", "sinfo -h -R -o '%500E' | grep -qE '"+c.reason+"'")
			down := time.Since(began).Seconds()
			t.Logf("after %.0f s sinfo -R says: %s", down, s.a.OK(t, "sinfo -h -R -o '%N: %500E' | sed 's/ *$//'"))
			s.soon("the job is queued again", "scontrol show job "+id+" | grep -q JobState=PENDING")
			if c.when != inJob {
				c.mend(s)
			}
			mended := time.Now()
			s.soon("the job has run", "scontrol update JobId="+id+" StartTime=now 2>/dev/null; scontrol show job "+id+" | grep -q JobState=COMPLETED")
			s.seen.Down[c.name] = map[string]float64{"node_down_s": down, "job_has_run_after_mend_s": time.Since(mended).Seconds()}
			s.a.OK(t, "rm -f /home/carol/again")
			s.gone(was)
		})
	}
}

// soon waits on host a until a condition holds.
func (s *pool) soon(what, condition string) {
	s.Helper()
	r := s.a.RunFor(s, 6*time.Minute, "bash", "-c", "for i in $(seq 300); do if "+condition+"; then exit 0; fi; sleep 1; done; exit 1")
	if r.Code != 0 {
		s.tell()
		s.Fatalf("not so after five minutes: %s: %s", what, r.Err)
	}
}

// gone waits until no node is there, and compares what is left on the hosts with what was there before.
func (s *pool) gone(before [2]string) {
	s.Helper()
	s.soon("all nodes are powered down and none is out of service", "[ -z \"$(sinfo -h -R)\" ] && ! sinfo -h -N -o %T | grep -qv 'idle~'")
	now := s.left()
	for end := time.Now().Add(2 * time.Minute); now != before && time.Now().Before(end); now = s.left() {
		time.Sleep(5 * time.Second) // to the file server, the client of a host that was reset is there for 90 s, until its lease ends (then only as a courtesy)
	}
	if now != before {
		s.Errorf("the hosts had\n%s\nand have\n%s", strings.Join(before[:], "\nb: "), strings.Join(now[:], "\nb: "))
	}
}
