package sync

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/site/intercept/preload"
	"berth/internal/site/iosync/place"
	"berth/test/built"
	"berth/test/testkit"
)

// hdfs is an HDFS of one name node and one data node at the address .1 of a site.
type hdfs struct {
	*site
	jars, conf string
}

// hadoop is the command line of one of Hadoop's programs, with its jars and settings in these folders.
func hadoop(jars, conf string, args ...string) []string {
	return append([]string{"java", "-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.io.tmpdir=" + conf, "-Djava.net.preferIPv4Stack=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", conf + ":" + jars + "/*"}, args...)
}

// startHDFS starts the servers, with their blocks on the site's disk. env is for the data node.
func startHDFS(s *site, env ...string) *hdfs {
	s.t.Helper()
	jars, err := filepath.Abs("../../build/hadoop")
	if err == nil {
		_, err = os.Stat(jars + "/pom.xml")
	}
	if err != nil {
		s.t.Skip("needs the jars of Hadoop: scripts/hadoop")
	}
	if _, err := exec.LookPath("java"); err != nil {
		s.t.Skip("needs java")
	}
	h := &hdfs{s, jars, s.dir + "/hadoop"}
	s.run("mkdir", "-p", h.conf)
	text := "<configuration>"
	for name, value := range map[string]string{
		"fs.defaultFS": "hdfs://%[1]s:8020", "dfs.replication": "1", "dfs.permissions.enabled": "false", "dfs.blocksize": "16777216",
		"dfs.namenode.name.dir": "%[2]s/name", "dfs.datanode.data.dir": "%[3]s/blocks", "dfs.datanode.readahead.bytes": "0",
		"dfs.namenode.datanode.registration.ip-hostname-check": "false", "dfs.datanode.hostname": "%[1]s", "dfs.namenode.http-address": "%[1]s:9870",
		"dfs.datanode.address": "%[1]s:9866", "dfs.datanode.http.address": "%[1]s:9864", "dfs.datanode.ipc.address": "%[1]s:9867",
		"dfs.datanode.round-robin-volume-choosing-policy.additional-available-space": "0",
		"hadoop.tmp.dir": "%[2]s/tmp", "dfs.namenode.safemode.extension": "0",
	} {
		text += "<property><name>" + name + "</name><value>" + fmt.Sprintf(value+"%[4]s", s.net+".1", s.dir+"/hadoop", s.served, "") + "</value></property>"
	}
	for _, file := range []string{"core-site.xml", "hdfs-site.xml"} {
		if err := os.WriteFile(h.conf+"/"+file, []byte(text+"</configuration>\n"), 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
	const server = "org.apache.hadoop.hdfs.server."
	if out, err := exec.Command("java", hadoop(jars, h.conf, server+"namenode.NameNode", "-format", "-nonInteractive")[1:]...).CombinedOutput(); err != nil {
		s.t.Fatalf("format: %v: %s", err, out)
	}
	for _, program := range []string{"namenode.NameNode", "datanode.DataNode"} {
		c := exec.Command("java", hadoop(jars, h.conf, server+program)[1:]...)
		c.Stdout, c.Stderr = &s.said, &s.said
		if program == "datanode.DataNode" {
			c.Env = append(os.Environ(), env...)
		}
		if err := c.Start(); err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { s.end(c, syscall.SIGTERM) })
	}
	s.eventually("the data node serves", time.Minute, func() bool {
		out, err := exec.Command("ss", "-ltn").Output()
		return err == nil && strings.Contains(string(out), s.net+".1:9866")
	})
	return h
}

// fill puts files of 200 MB into HDFS. It returns what nodes mount to run Hadoop's programs.
func (h *hdfs) fill(files ...string) (mounts string) {
	h.t.Helper()
	h.run("sh", "-c", "head -c 200000000 /dev/urandom > $0/data", h.conf)
	for _, file := range files {
		h.eventually("HDFS takes a file", time.Minute, func() bool { // when the data node has told the name node of itself
			c := exec.Command("java", hadoop(h.jars, h.conf, "org.apache.hadoop.fs.FsShell", "-put", "-f", h.conf+"/data", file)[1:]...)
			c.Stderr = &h.said
			return c.Run() == nil
		})
	}
	return fmt.Sprintf("mounts: [{source: %s, target: /srv, read_only: true}, {source: %s, target: /media, read_only: true}]\n", h.jars, h.conf)
}

// forgetBlocks takes what HDFS keeps out of the page cache.
func (h *hdfs) forgetBlocks() {
	h.t.Helper()
	h.run("sync", "-f", h.served)
	testkit.Must(h.t, filepath.WalkDir(h.served, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		h.forget(f)
		return nil
	}))
}

// shell is the command of a node that runs Hadoop's shell.
func (h *hdfs) shell(node, args string) *exec.Cmd {
	return exec.Command(h.dir+"/berth", "--root", h.root, "exec", node, "--", "sh", "-c",
		"exec "+strings.Join(hadoop("/srv", "/media", "org.apache.hadoop.fs.FsShell"), " ")+" "+args)
}

// rate runs Hadoop's shell in a node, and measures what the node receives or sends a second, once it does.
func (h *hdfs) rate(node, args, counter string, d time.Duration) float64 {
	h.t.Helper()
	c := h.shell(node, args)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Stderr = &h.said
	if err := c.Start(); err != nil {
		h.t.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGTERM)
		_ = c.Wait() // it is ended
	}()
	count := func() (float64, time.Time) {
		out := h.berth("exec", node, "--", "cat", "/sys/class/net/eth0/statistics/"+counter)
		n, _ := strconv.ParseFloat(strings.TrimSpace(out), 64)
		return n, time.Now()
	}
	begin, _ := count()
	h.eventually(node+" moves data", 30*time.Second, func() bool { now, _ := count(); return now > begin+4e6 })
	n, at := count()
	time.Sleep(d)
	m, end := count()
	return (m - n) / end.Sub(at).Seconds()
}

// TestHDFS: what nodes read from a real HDFS and write to it is held by way network.
func TestHDFS(t *testing.T) {
	s := newSite(t, "198.51.108")
	h := startHDFS(s)
	s.configure(fmt.Sprintf("filesystems: [{name: shared, path: %s, server: other, interface: %s}]\n", s.served, s.link))
	s.start()
	mounted := h.fill("/data")
	s.node("slow", 2, mounted+"io: [{name: s, filesystem: shared, read: {rate: 10MB/s}, write: {rate: 5MB/s}}]\n")
	s.node("fast", 3, mounted+"io: [{name: s, filesystem: shared}]\n")
	for _, c := range []struct {
		node, args, counter string
		asked               float64
	}{
		{"slow", "-cat /data >/dev/null", "rx_bytes", 10e6},
		{"slow", "-put /media/data /new", "tx_bytes", 5e6},
		{"fast", "-cat /data /data /data /data >/dev/null", "rx_bytes", 0},
	} {
		d := 6 * time.Second
		if c.asked == 0 {
			d = time.Second
		}
		got := h.rate(c.node, c.args, c.counter, d)
		t.Logf("%s %s: %.2f MB/s", c.node, c.args, got/1e6)
		switch {
		case c.asked > 0:
			testkit.Rate(t, "MB/s, "+c.node+" "+c.args, got/1e6, c.asked/1e6, 0.05)
		case testkit.Measures() && got < 30e6:
			t.Errorf("%s %s: %.2f MB/s", c.node, c.args, got/1e6)
		}
	}
}

// TestHDFSThreads: threads of a real data node put themselves into the groups of the nodes that read: the disk's limit holds, and nothing leaks.
func TestHDFSThreads(t *testing.T) {
	s := newSite(t, "198.51.125")
	testkit.Must(t, built.Preload(t.Context(), s.dir))
	s.configure(fmt.Sprintf("filesystems: [{name: shared, path: %s, server: hdfs}]\n", s.served))
	s.start()
	h := startHDFS(s, "LD_PRELOAD="+filepath.Join(s.dir, preload.Library), "BERTH_SYNC_DIR="+place.Dir(s.layout, "shared"))
	mounted := h.fill("/data", "/free")
	s.node("slow", 2, mounted+"io: [{name: s, filesystem: shared, read: {rate: 10MB/s}}]\n")
	s.node("fast", 3, mounted+"io: [{name: s, filesystem: shared}]\n")
	s.eventually("the group of slow has its limit", time.Second, func() bool { return s.limit("slow") == asked })
	found := s.audit("shared")
	h.forgetBlocks()
	before := s.counted("fast")
	beside := h.shell("fast", "-cat /free >/dev/null")
	beside.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	beside.Stderr = &h.said
	testkit.Must(t, beside.Start())
	got := h.rate("slow", "-cat /data >/dev/null", "rx_bytes", 6*time.Second)
	testkit.Rate(t, "MB/s, slow beside fast", got/1e6, asked/1e6, 0.05)
	_ = syscall.Kill(-beside.Process.Pid, syscall.SIGTERM) // it may have ended
	_ = beside.Wait()
	if fast := s.counted("fast") - before; fast < 100e6 {
		t.Errorf("fast read %d bytes from the disk beside slow", fast)
	}
	for range 3 { // short connections, of both in turn
		for node, file := range map[string]string{"slow": "/data", "fast": "/free"} {
			h.forgetBlocks()
			if out, err := h.shell(node, "-head "+file+" >/dev/null").CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", node, err, out)
			}
		}
	}
	s.settled()
	if own := clean(t, found(), "slow"); own < asked {
		t.Errorf("slow read %d bytes", own)
	}
	if held, ok := s.held("slow"); !ok || strings.Contains(held.Missing, "threads") || strings.Contains(held.Missing, "berth-sync.so") {
		t.Errorf("berth sync ls says %+v", held)
	}
}
