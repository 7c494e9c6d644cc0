package berthd

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"berth/test/testkit"
)

// troubled are nodes that an admin wants to hear of, and one of class batch, to which nothing has happened.
const troubled = `name: dead
image: host
command: [sh, -c, exit 3]
---
name: sick
image: host
command: [sleep, infinity]
health: {command: [test, -e, /tmp/well], every: 1s, retries: 1}
---
name: loops
image: host
command: [sh, -c, exit 1]
restart: always
---
name: well
image: host
class: batch
command: [sleep, infinity]
cpu: {max: 0.5}
network: [{name: eth1, mode: bridge, address: [10.9.7.2/24]}]
`

// TestAlerts: a real Prometheus that scrapes a real agent fires the rules that are installed with Berth for a node that is dead, one whose
// check fails and one that is restarted again and again, never for one of class batch that is well, and clears them when these are well
// again. Times are shortened: the rules wait and look back for minutes.
func TestAlerts(t *testing.T) {
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Skip("needs prometheus")
	}
	b := newBed(t)
	free := testkit.Free(t, 2)
	conf := fmt.Sprintf("host: a\nlocal: true\nmetrics: %s\n", free[0])
	testkit.Must(t, os.WriteFile(filepath.Join(b.Root, "berthd.yaml"), []byte(conf), 0o600))
	b.start()
	p := &prometheus{t: t, at: free[1]}
	p.start(free[0])
	b.Apply(t, troubled) // it sees the first restarts, which follow each other fast

	want := []string{"BerthNodeFailed dead", "BerthNodeRestartsOften loops", "BerthNodeUnhealthy sick"}
	p.fires(want)
	b.OK(t, "exec", "sick", "--", "touch", "/tmp/well")
	b.OK(t, "rm", "--force", "dead", "loops")
	p.fires(nil)
	b.OK(t, "rm", "--force", "sick", "well")
	b.end(syscall.SIGTERM)
	b.clean()
}

// prometheus is one that evaluates the installed rules.
type prometheus struct {
	t  *testing.T
	at string
}

// start starts it, and waits until it scrapes the agent.
func (p *prometheus) start(agent string) {
	p.t.Helper()
	dir := p.t.TempDir()
	rules, err := os.ReadFile("../../packaging/alerts.yaml")
	testkit.Must(p.t, err)
	short := regexp.MustCompile(`(for: )\d+m`).ReplaceAll(rules, []byte("${1}1s"))
	short = regexp.MustCompile(`\[\d+m\]`).ReplaceAll(short, []byte("[1m]"))
	conf := fmt.Sprintf("global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}\nrule_files: [rules.yaml]\n"+
		"scrape_configs: [{job_name: berth, static_configs: [{targets: [%q]}]}]\n", agent)
	testkit.Must(p.t, os.WriteFile(filepath.Join(dir, "rules.yaml"), short, 0o600), os.WriteFile(filepath.Join(dir, "conf.yaml"), []byte(conf), 0o600))
	var said testkit.Output
	cmd := exec.Command("prometheus", "--config.file="+filepath.Join(dir, "conf.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+p.at, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = &said, &said
	testkit.Must(p.t, cmd.Start())
	p.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if p.t.Failed() {
			p.t.Logf("prometheus said:\n%s", said.String())
		}
	})
	testkit.Eventually(p.t, "prometheus scrapes the agent", func() bool {
		var up struct {
			Data struct{ Result []struct{ Value []any } }
		}
		return p.ask("query?query=up==1", &up) && len(up.Data.Result) == 1
	})
}

// ask asks it; ok is false while it does not answer.
func (p *prometheus) ask(what string, answer any) (ok bool) {
	p.t.Helper()
	r, err := http.Get("http://" + p.at + "/api/v1/" + what)
	if err != nil {
		return false
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		return false // it is just starting
	}
	testkit.Must(p.t, json.Unmarshal(text, answer))
	return true
}

// fires waits until these alerts fire, as "RULE NODE" in order. No other rule may fire, meanwhile or then, and none for the node that is well.
func (p *prometheus) fires(want []string) {
	p.t.Helper()
	var is []string
	if !testkit.Happens(func() bool {
		is = nil
		var answer struct {
			Data struct {
				Alerts []struct {
					State  string
					Labels struct{ Alertname, Node, Limit string }
				}
			}
		}
		if !p.ask("alerts", &answer) {
			return false
		}
		for _, a := range answer.Data.Alerts {
			l := a.Labels
			if a.State != "firing" {
				continue
			}
			if l.Node == "well" || !strings.HasPrefix(l.Alertname, "BerthNode") {
				p.t.Fatalf("%s of node %q %s fires", l.Alertname, l.Node, l.Limit)
			}
			is = append(is, l.Alertname+" "+l.Node)
		}
		slices.Sort(is)
		return slices.Equal(is, want)
	}) {
		p.t.Fatalf("what fires is %q, want %q", is, want)
	}
}
