package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"berth/test/testkit"
)

// TestTerminal: a terminal, its size and Ctrl-C reach a command in a node by the agent as they do here.
func TestTerminal(t *testing.T) {
	s := serve(t)
	if _, text, code := s.berth("name: tty\nimage: host\ncommand: [sleep, \"1000\"]\n", "apply", "-f", "-"); code != 0 {
		t.Fatal(text)
	}
	berth := s.Program
	var outputs [2]string
	for i, how := range []string{"--root " + s.Root, "--host unix:" + s.socket} {
		// crun's exec gives the terminal its size when the command may run already, so the command waits for one.
		line := "stty rows 33 cols 77; " + berth + " " + how + ` exec -it tty -- sh -c 'until stty size | grep -qv "^0 0"; do sleep 0.02; done; stty size; test -t 0 && test -t 1 && test -t 2 && echo all; trap "echo heard; exit 5" INT; echo ready; while :; do sleep 0.1; done'`
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Bound())
		defer cancel()
		cmd := exec.CommandContext(ctx, "script", "-qec", line, "/dev/null")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		p := make([]byte, 1024)
		sent := false
		for {
			n, err := out.Read(p)
			got.Write(p[:n])
			if !sent && strings.Contains(got.String(), "ready") {
				sent = true
				if _, err := in.Write([]byte{3}); err != nil {
					t.Fatal(err)
				}
			}
			if err != nil {
				break
			}
		}
		err = cmd.Wait()
		var ended *exec.ExitError
		if !errors.As(err, &ended) || ended.ExitCode() != 5 {
			t.Errorf("%s: %v, want exit 5", how, err)
		}
		outputs[i] = got.String()
	}
	if outputs[0] != outputs[1] || !strings.Contains(outputs[1], "33 77") || !strings.Contains(outputs[1], "all") || !strings.Contains(outputs[1], "heard") {
		t.Errorf("here %q, by the agent %q", outputs[0], outputs[1])
	}
}

// TestLost: when the connection of a client breaks, he is told, and the node of his run ends.
func TestLost(t *testing.T) {
	s := serve(t)
	cut := filepath.Join(s.Dir(), "cut.sock")
	l, err := net.Listen("unix", cut)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var mu sync.Mutex
	var open []net.Conn
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("unix", s.socket)
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c, to)
			mu.Unlock()
			go func() { _, _ = io.Copy(to, c) }()
			go func() { _, _ = io.Copy(c, to) }()
		}
	}()
	cmd := exec.Command(s.Program, "--host", "unix:"+cut, "run", "--name", "lost", "--image", "host", "--", "sleep", "1000")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	there := func() bool { out, _, _ := s.berth("", "ls", "--json"); return strings.Contains(out, `"running"`) }
	testkit.Eventually(t, "the node runs", there)
	mu.Lock()
	for _, c := range open {
		c.Close()
	}
	mu.Unlock()
	err = cmd.Wait()
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.ExitCode() != 1 || !strings.Contains(stderr.String(), "the connection was lost") {
		t.Errorf("the client: %v, %s", err, stderr.String())
	}
	testkit.Eventually(t, "the node is gone", func() bool { out, _, _ := s.berth("", "ls", "--json"); return !strings.Contains(out, `"lost"`) })
}

// TestRefusedThere: what does not travel names the way, and what no client may run is refused by the agent.
func TestRefusedThere(t *testing.T) {
	s := serve(t)
	for line, want := range map[string]string{
		"cp here.txt node:/tmp/":   "tar -c here.txt | berth --host",
		"cp node:/etc/passwd .":    "| tar -x",
		"export node -o node.tar":  ">node.tar",
		"image import a.tar":       "berth image serve",
		"bench report result.json": "without --host",
		"ls --root /elsewhere":     "--root is not for the berth of another host",
		"keeper":                   "berth's own processes",
		"ls --host other":          "--host is not for the berth of another host",
		"--root /x ls":             "--root is not for another host",
	} {
		_, text, code := s.remote("", strings.Fields(line)...)
		if code != 2 || !strings.Contains(strings.Join(strings.Fields(text), " "), want) {
			t.Errorf("%s: exit %d, %s", line, code, text)
		}
	}
	if _, text, code := s.berth("", "ls", "--host", "other"); code != 2 || !strings.Contains(text, "--host stands before the command") {
		t.Errorf("--host behind the command: exit %d, %s", code, text)
	}
	_, text, code := s.run("", "--host", "unix:/nowhere.sock", "ls")
	if code != 3 || !strings.Contains(text, "no agent runs at /nowhere.sock") {
		t.Errorf("no agent: exit %d, %s", code, text)
	}
}

// TestOddWordsThere: a word that is not UTF-8 reaches no other file by an agent: it is refused here, by its name.
func TestOddWordsThere(t *testing.T) {
	s := serve(t)
	if _, text, code := s.berth("name: odd\nimage: host\ncommand: [sleep, \"1000\"]\n", "apply", "-f", "-"); code != 0 {
		t.Fatal(text)
	}
	if _, text, code := s.berth("", "exec", "odd", "--", "sh", "-c", `echo keep >"/tmp/w$(printf '\357\277\275')"`); code != 0 {
		t.Fatal(text)
	}
	for _, args := range [][]string{
		{"exec", "odd", "--", "rm", "/tmp/w\xe9"},
		{"exec", "-e", "X=\xe9", "odd", "--", "true"},
		{"exec", "-w", "/tmp/\xe9", "odd", "--", "true"},
		{"cp", "-", "odd:/tmp/w\xe9"},
		{"cp", "odd:/tmp/w\xe9", "-"},
		{"apply", "-f", "w\xe9.yaml"},
	} {
		if out, text, code := s.remote("", args...); code != 2 || out != "" || !strings.Contains(text, "UTF-8") || !strings.Contains(text, `\xe9`) {
			t.Errorf("%q: exit %d, %s", args, code, text)
		}
	}
	if out, text, code := s.remote("", "exec", "odd", "--", "cat", "/tmp/w\ufffd"); code != 0 || out != "keep\n" {
		t.Errorf("the other file: %q, exit %d, %s", out, code, text)
	}
}
