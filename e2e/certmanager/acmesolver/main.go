// Acmesolver answers the HTTP-01 challenge of its flags. It is the program of cert-manager's image of this name, whose server
// is in the published module of cert-manager.
package main

import (
	"flag"
	"os"

	"github.com/cert-manager/cert-manager/pkg/issuer/acme/http/solver"
	"k8s.io/klog/v2"
)

func main() {
	var s solver.HTTP01Solver
	flag.IntVar(&s.ListenPort, "listen-port", 8089, "port of the server")
	flag.StringVar(&s.Domain, "domain", "", "domain of the challenge")
	flag.StringVar(&s.Token, "token", "", "token of the challenge")
	flag.StringVar(&s.Key, "key", "", "response to the challenge")
	flag.Parse()
	log := klog.Background()
	if err := s.Listen(log); err != nil {
		log.Error(err, "serving the challenge")
		os.Exit(1)
	}
}
