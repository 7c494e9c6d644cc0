package etcd_test

import (
	"net"
	"os"
	"testing"
	"time"

	"berth/internal/site/store/etcd"
	"berth/test/testkit"
)

// TestNoProxy: a proxy that the environment names, for images, is not asked for the way to the cluster state. The client runs in a process of its
// own, as Go reads these variables once, and at 0.0.0.0, which is this host: for an address of the loopback no proxy is ever asked.
func TestNoProxy(t *testing.T) {
	const endpoint = "BERTH_TEST_ENDPOINT"
	if at := os.Getenv(endpoint); at != "" {
		s, err := etcd.Open(etcd.Config{Endpoints: []string{at}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		_, _ = s.Get(t.Context(), "key") // nobody answers
		return
	}
	asked := make(chan string, 1)
	listen := func(what string) (port string) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			if c, err := l.Accept(); err == nil {
				c.Close()
				select {
				case asked <- what:
				default: // the other one was asked before
				}
			}
		}()
		_, port, _ = net.SplitHostPort(l.Addr().String())
		return port
	}
	cmd := testkit.Again(t, t.Name(), endpoint+"=http://0.0.0.0:"+listen("the cluster state"), "HTTPS_PROXY=http://127.0.0.1:"+listen("the proxy"), "NO_PROXY=")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // it is killed
	select {
	case who := <-asked:
		if who != "the cluster state" {
			t.Errorf("%s was asked", who)
		}
	case <-time.After(testkit.Bound()):
		t.Error("nobody was asked")
	}
}
