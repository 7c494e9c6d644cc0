package server

import (
	"context"
	"encoding/json"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"berth/internal/site/api"
	"berth/internal/spec/roles"
	"berth/test/testkit"
)

// runs is a host whose program is a script that notes each command line.
type runs struct {
	fake
	program []string
}

func (r *runs) Program() []string { return r.program }

// ask sends a command line over a websocket, and returns what the server says at its end.
func ask(t *testing.T, address string, start api.Start) api.Control {
	t.Helper()
	text, err := json.Marshal(start)
	if err != nil {
		t.Fatal(err)
	}
	return askText(t, address, string(text))
}

// askText is ask of what a client may write who is not Berth's.
func askText(t *testing.T, address, start string) api.Control {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Bound())
	defer cancel()
	ws, answer, err := websocket.Dial(ctx, address+"/v1/command", nil)
	if err != nil {
		t.Fatal(answer, err)
	}
	defer func() { _ = ws.CloseNow() }()
	if err := ws.Write(ctx, websocket.MessageText, []byte(start)); err != nil {
		t.Fatal(err)
	}
	for {
		kind, text, err := ws.Read(ctx)
		if err != nil {
			t.Fatalf("%q: %v", start, err)
		}
		if kind == websocket.MessageText {
			var last api.Control
			if err := json.Unmarshal(text, &last); err != nil {
				t.Fatal(err)
			}
			return last
		}
	}
}

// serving answers as a server does whom everybody who asks is w for, and returns its address.
func serving(t *testing.T, s *Server, w roles.Who) string {
	h := httptest.NewUnstartedServer(s.Handler())
	h.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context { return context.WithValue(ctx, peer{}, w) }
	h.Start()
	t.Cleanup(h.Close)
	return h.URL
}

// TestWordsAreExact: a word that the agent would read as another one is refused, and its program never runs.
func TestWordsAreExact(t *testing.T) {
	noted := filepath.Join(t.TempDir(), "noted")
	program := []string{"/bin/sh", "-c", `printf '%s\n' "$*" >>` + noted, "berth"}
	h := serving(t, &Server{Host: &runs{program: program}}, admin())
	for _, word := range []string{`w\udce9`, "w\xe9", `\ud83d`, "\xf0\x9f"} {
		for _, start := range []string{
			`{"args":["exec","n","--","rm","` + word + `"]}`,
			`{"args":["apply","-f","x"],"files":[{"name":"` + word + `","dir":"/"}]}`,
		} {
			if last := askText(t, h, start); last.Problem == nil || last.Problem.Status != 400 || !strings.Contains(last.Problem.Detail, "UTF-8") {
				t.Errorf("%q: %+v", start, last)
			}
		}
	}
	if text, err := os.ReadFile(noted); err == nil {
		t.Errorf("the program ran: %s", text)
	}
	for start, want := range map[string]string{`{"args":["w\u00e9"]}`: "wé", `{"args":["w\ud83d\ude00"]}`: "w\U0001f600", `{"args":["w\ufffd"]}`: "w\ufffd"} {
		if last := askText(t, h, start); last.Exit == nil || *last.Exit != 0 {
			t.Errorf("%q: %+v", start, last)
		}
		if text, err := os.ReadFile(noted); string(text) != want+"\n" {
			t.Errorf("%s: the program got %q, %v", start, text, err)
		}
		_ = os.Remove(noted)
	}
}

// TestViewersLines: of the lines that a viewer sends over a websocket the program gets those that read, as they are, and no other.
func TestViewersLines(t *testing.T) {
	noted := filepath.Join(t.TempDir(), "noted")
	program := []string{"/bin/sh", "-c", `printf '%s\n' "$*" >>` + noted, "berth"}
	h := serving(t, &Server{Host: &runs{program: program}}, roles.Who{Name: "eve", Role: roles.Viewer, Via: roles.ViaTLS})
	hostile := []string{
		"--help --help=false run --image host -- id",
		"--help run --image host -- id",
		"--help=false",
		"-h run --image host -- id",
		"--version --version=false certs issue --role admin eve",
		"--version certs issue --role admin eve",
		"ls --help=false",
		"doctor --calibrate /dev/sda --destroy-data",
		"doctor --calibrate=/dev/sda --destroy-data",
		"doctor /srv",
		"doctor --all --write",
		"net export -f -- --root=/any",
		"net export -f /etc/shadow",
		"net export -f/etc/shadow",
		"net export --file /etc/shadow",
		"net export --file=/etc/shadow",
		"net export --format -f /etc/shadow",
		"net export --format -- -f /etc/shadow",
		"net export /etc/shadow",
		"net export -- x",
		"logs -n -- --root=/any x",
		"logs -fn20 x",
		"logs -n20 x",
		"logs x --root /any",
		"logs x --root=/any",
		"logs -n=20 x",
		"logs --lines",
		"show -",
		"show x -- --spec",
		"show x --spec=maybe",
		"show x --spec maybe --force",
		"ls --host=other",
		"ls x",
		"ls --json=",
		"ls --filter",
		"events --stream=0",
		"image pull debian",
		"image",
		"pool add p --dir /etc",
		"pool --json ls",
		"image ls pull",
		"exec x -- id",
		"run --help",
		"keeper",
		"host forget node2",
		"template ls /etc",
		"audit",
		"help --help=false run",
		"completion bash --root=/x",
	}
	for _, line := range hostile {
		if end := ask(t, h, api.Start{Args: strings.Fields(line)}); end.Problem == nil || end.Exit != nil {
			t.Errorf("berth %s ran: %+v", line, end)
		}
	}
	for _, args := range [][]string{nil, {""}, {"show", ""}, {"ls", "--json\n"}, {"ls --json"}} {
		if end := ask(t, h, api.Start{Args: args}); end.Problem == nil {
			t.Errorf("berth %q ran: %+v", args, end)
		}
	}
	if end := ask(t, h, api.Start{Args: []string{"ls"}, Files: []api.File{{Name: "x", Content: []byte("x")}}}); end.Problem == nil {
		t.Errorf("berth ls with a file ran: %+v", end)
	}
	if text, err := os.ReadFile(noted); err == nil {
		t.Fatalf("the program ran as %s", text)
	}
	well := []string{
		"--help", "--version", "ls", "ls --json --filter label=team=storage", "ls --help", "show wn-001 --spec", "show --spec=true wn-001",
		"top -n 1 --sort read", "top wn-001 --interval 500ms", "logs -f -n 20 wn-001", "logs --timestamps --since 10m wn-001 wn-002",
		"events --since 1h --stream=false --json", "wait --timeout 10m job-1", "doctor --all", "doctor --json", "schema", "help run",
		"image ls --json", "vf ls", "net export --format csv", "net export --format=dnsmasq", "net pool ls", "pool ls", "host ls", "template ls --json",
	}
	for _, line := range well {
		if end := ask(t, h, api.Start{Args: strings.Fields(line)}); end.Exit == nil || *end.Exit != 0 {
			t.Errorf("berth %s: %+v", line, end)
		}
	}
	text, err := os.ReadFile(noted)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Split(strings.TrimSpace(string(text)), "\n"); !slices.Equal(got, well) {
		t.Errorf("the program ran as %q\nwant %q", got, well)
	}
	if end := ask(t, serving(t, &Server{Host: &runs{program: program}}, admin()), api.Start{Args: []string{"doctor", "--calibrate", "/dev/x"}}); end.Exit == nil {
		t.Errorf("an admin's line: %+v", end)
	}
}

// TestProxies: a command for a client finds the proxies that the agent was given, and nothing else of the agent's variables.
func TestProxies(t *testing.T) {
	noted := filepath.Join(t.TempDir(), "noted")
	h := serving(t, &Server{Host: &runs{program: []string{"/bin/sh", "-c", "env >" + noted, "berth"}}}, admin())
	t.Setenv("HTTPS_PROXY", "http://proxy.example:3128")
	t.Setenv("no_proxy", "registry.example")
	t.Setenv("HTTP_PROXY", "")
	t.Setenv("BERTH_TEST_OWN", "x")
	if last := ask(t, h, api.Start{Args: []string{"image", "ls"}}); last.Exit == nil || *last.Exit != 0 {
		t.Fatalf("%+v", last)
	}
	text, err := os.ReadFile(noted)
	if err != nil {
		t.Fatal(err)
	}
	env := strings.Split(string(text), "\n")
	for _, want := range []string{"HTTPS_PROXY=http://proxy.example:3128", "no_proxy=registry.example"} {
		if !slices.Contains(env, want) {
			t.Errorf("no %s in %q", want, env)
		}
	}
	if strings.Contains(string(text), "BERTH_TEST_OWN") || strings.Contains(string(text), "HTTP_PROXY=\n") {
		t.Errorf("got %q", env)
	}
}
