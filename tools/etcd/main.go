// Command etcd is the etcd server of the version in go.mod, as a program: tests run it beside Debian's.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
