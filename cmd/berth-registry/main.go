// Command berth-registry serves the images of this host to others for berth image serve, which starts it.
package main

import (
	"context"
	"flag"
	"os"
	"os/signal"
	"syscall"

	"berth/internal/image/serve"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

func main() {
	var o serve.Options
	root := flag.String("root", "", "as berth --root")
	flag.StringVar(&o.Listen, "listen", "127.0.0.1:5000", "ADDRESS:PORT")
	flag.StringVar(&o.Cert, "tls-cert", "", "the server's certificate")
	flag.StringVar(&o.Key, "tls-key", "", "its key")
	flag.StringVar(&o.ClientCA, "client-ca", "", "the authority of the clients' certificates")
	flag.Parse()
	syscall.Umask(0o077)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := serve.Run(ctx, layout.New(*root), o, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		text.Wrap(os.Stderr, text.Columns(os.Stderr), len("berth: "), "berth: ", err.Error())
		os.Exit(int(refuse.KindOf(err)))
	}
}
