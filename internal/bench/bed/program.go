package bed

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"berth/internal/bench/side"
)

// startsWithin is how long a program may take until it answers.
const startsWithin = 20 * time.Second

// Program runs a program of the host until the bed is taken apart, or this process ends. It returns when answers has no error.
func (b *Bed) Program(ctx context.Context, argv []string, answers func() error) error {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx)) // its users end before it
	ended := make(chan struct{})
	var failed error
	go func() {
		_, failed = side.Host(running, argv)
		close(ended)
	}()
	b.Later(func() error {
		cancel()
		<-ended
		return nil
	})
	for begun := time.Now(); ; {
		err := answers()
		if err == nil {
			return nil
		}
		if time.Since(begun) > startsWithin {
			return fmt.Errorf("start %s: it does not answer: %w", strings.Join(argv, " "), err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			return fmt.Errorf("start %s: it ended: %w", strings.Join(argv, " "), failed)
		case <-time.After(20 * time.Millisecond): // nothing tells when another program begins to listen
		}
	}
}

// Takes asks whether connections are taken at an address.
func Takes(address string) func() error {
	return func() error {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// FreePort finds a port of an address of this host that nothing listens at.
func FreePort(address string) (string, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	addr, _ := l.Addr().(*net.TCPAddr)
	return strconv.Itoa(addr.Port), l.Close()
}
