package lab_test

import (
	"strings"
	"testing"
	"time"

	"berth/test/sample"
)

// trouble is something that fails below a job on host b, until it is mended.
type trouble struct {
	name, reason string // of the node, while it is down
	begin, mend  func(*pool)
}

var troubles = []trouble{
	{"no function free", "berth: ", func(s *pool) {
		s.b.Write(s, "/root/taker.yaml", "name: taker\nimage: host\ncommand: [sleep, infinity]\nnetwork: [{mode: sriov, parent: site0}, {name: eth1, mode: sriov, parent: site0}, {name: eth2, mode: sriov, parent: site0}]\n")
		s.b.OK(s, "berth apply -f /root/taker.yaml")
	}, func(s *pool) { s.b.OK(s, "berth rm --force taker") }},
	{"cable pulled", "berth: ", func(s *pool) { s.b.UnplugCable(s, 0) }, func(s *pool) { s.b.PlugCable(s, 0) }},
	{
		"image missing", "berth: ", func(s *pool) {
			s.b.OK(s, "sed -i 's/image: host/image: oci:nothing-here/' /etc/berth/templates/worker.yaml")
		},
		func(s *pool) {
			s.b.OK(s, "sed -i 's/image: oci:nothing-here/image: host/' /etc/berth/templates/worker.yaml")
		},
	},
	{"cluster state away", "berth: ", func(s *pool) { s.a.OK(s, "systemctl stop berthd") }, func(s *pool) { s.a.OK(s, "systemctl start berthd") }},
	{"host reset", "berth: it ", func(s *pool) { s.b.Kill() }, func(s *pool) {
		s.b.Boot(s)
		s.b.OK(s, bareNetwork(1)+"; systemctl start ssh munge; systemctl restart berthd; while awaiting; do berth host ls >/dev/null 2>&1 && exit; done; exit 1")
	}},
}

// failures has something fail below a job: the node is told as down, the job is queued again and runs, and nothing is left.
func (s *pool) failures(before [2]string) {
	for _, c := range sample.Some(sample.Of(s.T), 1, troubles...) {
		s.Run(c.name, func(t *testing.T) {
			s := &pool{t, s.a, s.b}
			running := c.name == "host reset"
			if !running {
				c.begin(s)
			}
			id := strings.TrimSpace(s.a.OK(t, `cd /home/carol; runuser -u carol -- sbatch --parsable --constraint=b --output=%j.out --wrap 'hostname; [ -e again ] || { touch again; sleep `+map[bool]string{true: "300", false: "1"}[running]+`; }'`))
			began := time.Now()
			if running {
				s.soon("the job runs", "scontrol show job "+id+" | grep -q JobState=RUNNING && [ -e /home/carol/again ]")
				c.begin(s)
				c.mend(s) // the host tells when it is back
			}
			s.soon("its node is down", "sinfo -h -R -o '%500E' | grep -q '"+c.reason+"'")
			t.Logf("after %.0f s sinfo -R says: %s", time.Since(began).Seconds(), s.a.OK(t, "sinfo -h -R -o '%N: %500E' | sed 's/ *$//'"))
			s.soon("the job is queued again", "scontrol show job "+id+" | grep -q JobState=PENDING")
			if !running {
				c.mend(s)
			}
			s.soon("the job has run", "scontrol update JobId="+id+" StartTime=now 2>/dev/null; scontrol show job "+id+" | grep -q JobState=COMPLETED")
			s.a.OK(t, "rm -f /home/carol/again")
			s.gone(before)
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
