// Package share is the commands berth image build and serve: they make images from Debian's packages, and give images to other
// hosts.
package share

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"berth/internal/sys/layout"
	"berth/internal/sys/sibling"
)

// App has what the commands share with the rest of the command line.
type App struct {
	Out, Err  io.Writer
	JSON      *bool // --json
	Layout    func() layout.Layout
	JSONFlag  func(*cobra.Command) *cobra.Command
	PrintJSON func(any) error
	Progress  func(what string) (progress func(done, total int64), done func())
}

// server is the program that serves images. It is a program of its own because HTTP and TLS would slow each start of berth.
const server = "berth-registry"

// Serve returns the command berth image serve.
func (a App) Serve() *cobra.Command {
	var listen, cert, key, clients string
	c := &cobra.Command{
		Use: "serve", Short: "give this host's images to other hosts",
		Args: cobra.NoArgs,
		Long: `Serve the images of the store, read-only, by the protocol of OCI registries:
berth image pull, podman, skopeo and containerd fetch them from here. An image
named team/worker:1.2 is HOST:PORT/team/worker:1.2. It runs until SIGTERM or
Ctrl-C, and writes a line for each request to standard error.

Images that are added are served within a second, images that are removed are
not served any more. Layers are put together while they are sent: nothing is
stored twice. An image has another digest here than in the registry that it came
from.

Beyond the loopback TLS is required: --tls-cert and --tls-key. Whoever reaches
the port can read every image, unless --client-ca names the authority of the
clients' certificates.

Exit codes: 2 an address beyond the loopback without TLS, or a certificate that
cannot be read; 3 no berth-registry beside berth; 5 the port is in use.`,
		Example: "  berth image serve                       at 127.0.0.1:5000\n" +
			"  berth image serve --listen :5000 --tls-cert host.crt --tls-key host.key",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			path, err := sibling.Find(server, "images are served", "make install puts both there")
			if err != nil {
				return err
			}
			args := append([]string{path}, a.Layout().Args()...)
			for _, f := range [][2]string{{"--listen", listen}, {"--tls-cert", cert}, {"--tls-key", key}, {"--client-ca", clients}} {
				if f[1] != "" {
					args = append(args, f[0]+"="+f[1])
				}
			}
			if err := unix.Exec(path, args, os.Environ()); err != nil {
				return fmt.Errorf("start %s: %w", path, err)
			}
			return nil
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:5000", "listen at `ADDRESS:PORT`; 0.0.0.0 and [::] are all addresses")
	c.Flags().StringVar(&cert, "tls-cert", "", "the server's certificate, with those between it and its authority, in PEM (`FILE`)")
	c.Flags().StringVar(&key, "tls-key", "", "its key (`FILE`)")
	c.Flags().StringVar(&clients, "client-ca", "", "serve only clients with a certificate of this authority (`FILE`)")
	return c
}
