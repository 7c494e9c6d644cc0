package lab_test

import (
	"strings"
	"testing"
	"time"

	"berth/test/testkit"
)

// TestNFSServerAway: a server that is away does not keep a node from stopping. One that is killed and comes back has all that it
// acknowledged.
func TestNFSServerAway(t *testing.T) {
	t.Parallel()
	host, server, adapter := nfsLab(t)
	node(t, host, nfsNode("writer", adapter, 11, viaNode, strings.NewReplacer(":/srv", ":/srv/all", "/mnt", "/opt").Replace(viaNode)))
	node(t, host, nfsNode("other", adapter, 12, viaNode, viaHost))
	// Its mount is of another folder of the same server, and it is the only user of it.
	node(t, host, nfsNode("third", adapter, 13, strings.ReplaceAll(viaHost, ":/srv", ":/srv/all")))

	// Each number is written and synced on the server, then noted in the node's own memory.
	host.OK(t, `berth exec other -- sh -c 'nohup python3 -c "
import os
f = os.open(\"/mnt/all/synced\", os.O_WRONLY|os.O_CREAT|os.O_APPEND); n = open(\"/dev/shm/acknowledged\", \"a\")
for i in range(1000000):
    os.write(f, b\"%d\\n\" % i); os.fsync(f); n.write(\"%d\\n\" % i); n.flush()
" >/dev/shm/out 2>&1 </dev/null &'; until [ "$(berth exec other -- sh -c 'wc -l </dev/shm/acknowledged')" -gt 20 ]; do sleep 0.2; done`)
	// Another has a file open, and writes when it is told to.
	host.OK(t, `berth exec writer -- sh -c 'nohup sh -c "exec 3>/mnt/all/unsynced 4>/opt/second; touch /dev/shm/open; until [ -e /dev/shm/go ]; do sleep 0.1; done; dd if=/dev/zero bs=64k count=4 >&4; dd if=/dev/zero bs=1M count=32 >&3" >/dev/null 2>&1 </dev/null &
until [ -e /dev/shm/open ]; do sleep 0.1; done'`)
	server.Kill()
	at := host.OK(t, "berth exec other -- sh -c 'sleep 2; wc -l </dev/shm/acknowledged'")
	host.OK(t, "berth exec writer -- sh -c 'touch /dev/shm/go; sleep 6'")
	began := time.Now()
	if out := host.OK(t, "berth stop writer 2>&1"); !strings.Contains(out, "file server 192.0.2.1 did not answer") {
		t.Errorf("berth stop does not print what is lost: %s", out)
	}
	if took := time.Since(began); took > testkit.Bound() {
		t.Errorf("to stop a node took %s while its server was away", took)
	} else {
		t.Logf("stopped in %s", took)
	}
	if out := host.OK(t, "berth events --stream=false"); !strings.Contains(out, "writer lost: file server 192.0.2.1 did not answer") {
		t.Errorf("what is lost is not told: %s", out)
	}
	// To give up the requests of one shared mount leaves the other's alone: its writer is told nothing, and waits.
	host.OK(t, `berth exec other -- sh -c 'nohup sh -c "dd if=/dev/zero of=/media/all/slow bs=64k count=4 conv=fsync; echo \$? >/dev/shm/slow" >/dev/null 2>&1 </dev/null &'
berth exec third -- sh -c 'nohup dd if=/dev/zero of=/media/third bs=64k count=4 conv=fsync >/dev/null 2>&1 </dev/null & sleep 2'`)
	began = time.Now()
	host.OK(t, "berth stop --grace 0s third")
	t.Logf("the only user of a shared mount stopped in %s", time.Since(began))
	host.OK(t, "berth exec other -- test ! -e /dev/shm/slow")
	// A mount that node other uses is also other's: a node with the same mount is not stopped at the cost of other's writes, and
	// none is started.
	host.Write(t, "/root/late.yaml", nfsNode("late", adapter, 14, viaHost))
	if r := host.Run(t, "berth", "apply", "-f", "/root/late.yaml"); r.Code == 0 || !strings.Contains(r.Err, "reach file server") {
		t.Errorf("a node joined a mount whose server is away: exit code %d, %s", r.Code, r.Err)
	}
	if out := host.OK(t, "grep -l 'berth.*/writer' /proc/*/cgroup | wc -l"); out != "0" {
		t.Errorf("%s processes of the node are left", out)
	}

	server.Boot(t)
	serveNFS(t, server, false)
	host.OK(t, `until [ "$(berth exec other -- sh -c 'wc -l </dev/shm/acknowledged')" -gt `+at+` ]; do sleep 0.5; done; berth exec other -- pkill python3`)
	host.OK(t, "berth exec other -- cat /dev/shm/acknowledged >/root/acknowledged")
	if lost := host.OK(t, "berth exec other -- cat /mnt/all/synced >/root/synced; comm -23 <(sort /root/acknowledged) <(sort /root/synced) | wc -l; wc -l </root/acknowledged"); !strings.HasPrefix(lost, "0\n") {
		t.Errorf("acknowledged and not there, of: %s", lost)
	} else {
		t.Logf("acknowledged and there: %s", lost)
	}
	if out := host.OK(t, "until berth exec other -- test -s /dev/shm/slow; do sleep 0.5; done; berth exec other -- cat /dev/shm/slow"); out != "0" {
		t.Errorf("a write through another mount of the same server ended with %s", out)
	}
	host.OK(t, "berth start writer && berth exec writer -- ls /mnt/all")
}
