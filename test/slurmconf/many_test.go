package slurmconf

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/internal/site/api"
	"berth/internal/site/certs"
	"berth/internal/spec/roles"
	"berth/test/built"
	"berth/test/env"
	"berth/test/testkit"
)

// TestHundredAgents: berth slurm config asks the agents of 100 hosts, each over a connection of its own. What answers is one program that has all their
// addresses: real TLS, and no nodes.
func TestHundredAgents(t *testing.T) {
	s := &site{Berth: env.New(t, ""), address: map[string]string{}}
	testkit.Must(t, built.Site(t.Context(), s.Dir()))
	signer, err := certs.Init(filepath.Join(s.Dir(), "ca"))
	testkit.Must(t, err)
	first := testkit.Free(t, 1)[0] // 127.A.B.C:PORT: the others have it with another C
	ip, port, err := net.SplitHostPort(first)
	testkit.Must(t, err)
	subnet := ip[:strings.LastIndexByte(ip, '.')]
	var hosts api.SiteHosts
	var names, ips []string
	for i := range 100 {
		names, ips = append(names, fmt.Sprintf("st%03d", i+1)), append(ips, fmt.Sprintf("%s.%d", subnet, i+1))
		hosts.Hosts = append(hosts.Hosts, api.Host{
			Name: names[i], Address: net.JoinHostPort(ips[i], port), Alive: true, Facts: &api.HostFacts{CPUs: 40, Memory: 200 << 30, Slots: 20, Rack: fmt.Sprint("rack", i/10)},
		})
	}
	b, err := signer.IssueHost(t.Context(), "st001", ips)
	testkit.Must(t, err)
	testkit.Must(t, certs.Install(filepath.Join(s.Dir(), "host"), b))
	env.Certify(t, signer, filepath.Join(s.Dir(), "slurm"), "slurm", roles.Operator)
	s.address["st01"] = hosts.Hosts[0].Address

	var mu sync.Mutex
	asked := map[string]int{} // by address
	answer := func(what any) http.HandlerFunc {
		text, err := json.Marshal(what)
		testkit.Must(t, err)
		return func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			asked[r.Host]++
			mu.Unlock()
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(text)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/v1/site/hosts", answer(hosts))
	mux.Handle("/v1/templates", answer(map[string]any{"templates": []api.Template{{Name: "worker", Node: &api.TemplateNode{CPUs: 2, Memory: 4 << 30, Scratch: 20 << 30, Class: "batch", Networks: []string{"sriov"}, Functions: 1}}}}))
	for _, one := range ips {
		plain, err := net.Listen("tcp", net.JoinHostPort(one, port))
		testkit.Must(t, err)
		l, err := certs.Listen(t.Context(), plain, filepath.Join(s.Dir(), "host"))
		testkit.Must(t, err)
		server := &http.Server{Handler: mux, ReadHeaderTimeout: testkit.Bound()}
		go func() { _ = server.Serve(l) }()
		t.Cleanup(func() { _ = server.Close() })
	}
	path := s.settings(t, "hosts: [{hosts: [\"st[001-100]\"]}]\n")
	began := time.Now()
	code, out, said := s.berth(t, "slurm", "config", "--settings", path, "--slurm-version", "22.05", "--dir", s.Dir())
	took := time.Since(began)
	t.Logf("100 agents asked, 2000 nodes: %s", took.Round(time.Millisecond))
	last := "NodeName=st100-20 CPUs=2 Sockets=2 CoresPerSocket=1 ThreadsPerCore=1 RealMemory=4096 TmpDisk=20480 Gres=scratch:20480M,vf:1 Feature=st100,rack9,hosts,worker,batch,sriov Weight=2099 State=CLOUD\n"
	if code != 0 || !strings.Contains(out, last) || strings.Count(out, "State=CLOUD\n") != 2000 || strings.Contains(said, "told nothing") {
		t.Fatalf("%d, %d nodes: %s", code, strings.Count(out, "State=CLOUD\n"), said)
	}
	mu.Lock()
	defer mu.Unlock()
	for i, h := range hosts.Hosts {
		if n := asked[h.Address]; n == 0 {
			t.Errorf("the agent of %s was not asked", names[i])
		}
	}
	if testkit.Measures() && took > time.Second {
		t.Errorf("it took %s, and a second is promised", took)
	}
}
