package server

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/spec/roles"
	"berth/test/testkit"
)

// odd sends bytes over a connection of its own, and returns the statuses of the answers and all that came until the server ended the connection.
func odd(t *testing.T, at string, sent []byte) (statuses []int, rest []byte) {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testkit.Bound()))
	if _, err := c.Write(sent); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	for {
		answer, err := http.ReadResponse(r, nil)
		if err != nil {
			return statuses, rest
		}
		statuses = append(statuses, answer.StatusCode)
		if answer.StatusCode == http.StatusSwitchingProtocols {
			_ = c.(*net.TCPConn).CloseWrite() // else the server waits for a close
			rest, _ = io.ReadAll(r)           // the server breaks off
			return statuses, rest
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
	}
}

// TestOddRequests: there is one way to read a request, and no other protocol: lengths that contradict each other, compressed bodies, HTTP/2, large headers.
func TestOddRequests(t *testing.T) {
	at := answering(t, &Server{Host: &acting{during: func() { t.Error("something was done") }}}, roles.Who{Name: "ann", Role: roles.Operator, Via: roles.ViaTLS})
	const make = "POST /v1/templates/job/nodes HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nConnection: close\r\n"
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = io.WriteString(z, `{"name": "n"}`)
	_ = z.Close()
	for what, tc := range map[string]struct {
		request string
		want    []int
	}{
		"two lengths":   {make + "Content-Length: 13\r\nContent-Length: 0\r\n\r\n{\"name\": \"n\"}", []int{400}},
		"a signed one":  {make + "Content-Length: +13\r\n\r\n{\"name\": \"n\"}", []int{400}},
		"both forms":    {make + "Content-Length: 13\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", []int{400}}, // of the chunks
		"unknown form":  {make + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", []int{501}},
		"compressed":    {fmt.Sprintf("%sContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", make, packed.Len(), packed.String()), []int{400}},
		"HTTP/2":        {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", []int{404}},
		"an upgrade":    {"GET /v1/nothing HTTP/1.1\r\nHost: b\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n", []int{404}},
		"large headers": {"GET /v1/nodes HTTP/1.1\r\nHost: b\r\nX: " + strings.Repeat("x", 32<<10) + "\r\n\r\n", []int{431}},
		"no host":       {"GET /v1/nodes HTTP/1.1\r\n\r\n", []int{400}},
		"a proxy":       {"GET http://other/v1/nothing HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n", []int{404}},
		"CONNECT":       {"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n", []int{404}},
	} {
		if got, _ := odd(t, at, []byte(tc.request)); fmt.Sprint(got) != fmt.Sprint(tc.want) {
			t.Errorf("%s: %v, want %v", what, got, tc.want)
		}
	}
}

// frame is a frame of a websocket (RFC 6455, 5.2), masked with zeros.
func frame(first byte, length uint64, data string) string {
	b := binary.BigEndian.AppendUint64([]byte{first, 0x80 | 127}, length)
	return string(append(b, 0, 0, 0, 0)) + data
}

// TestOddFrames: a websocket whose client keeps to no rule ends, and nothing runs.
func TestOddFrames(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	at := answering(t, &Server{Host: &runs{program: []string{"/bin/sh", "-c", "echo >" + ran, "berth"}}}, roles.Who{Name: "eve", Role: roles.Viewer, Via: roles.ViaTLS})
	const upgrade = "GET /v1/command HTTP/1.1\r\nHost: b\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n" +
		"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
	const start = `{"args":["ls"]}`
	for what, frames := range map[string]string{
		"not masked":       "\x81\x0f" + start,
		"compressed":       frame(0xc1, uint64(len(start)), start),
		"negative length":  frame(0x81, 1<<64-1, start),
		"more than may be": frame(0x81, 1<<20, `{"args":["`+strings.Repeat("x", 1<<20-10)),
		"a long ping":      frame(0x89, 200, strings.Repeat("x", 200)),
		"a continuation":   frame(0x80, uint64(len(start)), start),
		"binary":           frame(0x82, uint64(len(start)), start),
		"not UTF-8":        frame(0x81, 16, "{\"args\":[\"l\xffs\"]}"),
		"no opcode":        frame(0x85, 1, "x"),
	} {
		got, rest := odd(t, at, []byte(upgrade+frames))
		if _, err := os.Stat(ran); err == nil || fmt.Sprint(got) != "[101]" {
			t.Fatalf("%s: %v %q, %v", what, got, rest, err)
		}
	}
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, upgrade+frame(0x81, uint64(len(start)), start)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "what keeps to the rules runs", func() bool { _, err := os.Stat(ran); return err == nil })
}
