// Agnhost stands in for the image agnhost of the manifests of the network policy API's conformance suite. It implements
// the commands that the manifests and tests use. SCTP is limited to the first packet of each side, and does not need the kernel's.
//
// The manifests run its commands with a shell. Called as bash, the program runs the command line after -c.
package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	args := os.Args[1:]
	if filepath.Base(os.Args[0]) == "bash" {
		if len(args) != 2 || args[0] != "-c" {
			fail("usage: bash -c COMMAND")
		}
		args = strings.Fields(args[1])[1:]
	}
	command := "pause"
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	var err error
	switch command {
	case "pause":
		terminated := make(chan os.Signal, 1)
		signal.Notify(terminated, syscall.SIGTERM)
		<-terminated
	case "porter":
		err = serveSCTP()
	case "connect":
		err = connect(args)
	case "serve-hostname":
		err = serveHostname(args)
	case "netexec":
		err = netexec(args)
	default:
		err = fmt.Errorf("unknown command %s", command)
	}
	if err != nil {
		fail(err.Error())
	}
}

// fail prints a message and exits. The tests read the result of connect from standard error.
func fail(message string) {
	fmt.Fprintln(os.Stderr, message)
	os.Exit(1)
}

// connect connects to an address, and over UDP waits for an answer to a datagram. Its error is TIMEOUT, REFUSED or OTHER.
func connect(args []string) error {
	flags := flag.NewFlagSet("connect", flag.ExitOnError)
	timeout := flags.Duration("timeout", time.Second, "")
	protocol := flags.String("protocol", "tcp", "")
	_ = flags.Parse(args) // it exits on errors
	err := exchange(*protocol, flags.Arg(0), *timeout)
	var netErr net.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &netErr) && netErr.Timeout():
		return errors.New("TIMEOUT")
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("REFUSED")
	}
	return fmt.Errorf("OTHER: %w", err)
}

func exchange(protocol, address string, timeout time.Duration) error {
	if protocol == "sctp" {
		return connectSCTP(address, timeout)
	}
	conn, err := net.DialTimeout(protocol, address, timeout)
	if err != nil || protocol == "tcp" {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("hostname\n")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1024))
	return err
}

// serveHostname answers every connection or datagram with the hostname.
func serveHostname(args []string) error {
	flags := flag.NewFlagSet("serve-hostname", flag.ExitOnError)
	tcp := flags.Bool("tcp", false, "")
	udp := flags.Bool("udp", false, "")
	flags.Bool("http", true, "")
	port := flags.Int("port", 9376, "")
	_ = flags.Parse(args)
	address := net.JoinHostPort("", strconv.Itoa(*port))
	switch {
	case *tcp:
		return serveTCP(address)
	case *udp:
		return serveUDP(address)
	}
	return errors.New("serve-hostname needs --tcp or --udp")
}

// netexec answers with the hostname on a TCP and a UDP port.
func netexec(args []string) error {
	flags := flag.NewFlagSet("netexec", flag.ExitOnError)
	httpPort := flags.Int("http-port", 8080, "")
	udpPort := flags.Int("udp-port", 8081, "")
	udpAddress := flags.String("udp-listen-addresses", "", "")
	_ = flags.Parse(args)
	failed := make(chan error)
	go func() { failed <- serveTCP(net.JoinHostPort("", strconv.Itoa(*httpPort))) }()
	go func() { failed <- serveUDP(net.JoinHostPort(*udpAddress, strconv.Itoa(*udpPort))) }()
	return <-failed
}

func serveTCP(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		_, _ = conn.Write(hostname()) // clients may close the connection without reading
		_ = conn.Close()
	}
}

func serveUDP(address string) error {
	conn, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	datagram := make([]byte, 1024)
	for {
		_, client, err := conn.ReadFrom(datagram)
		if err != nil {
			return err
		}
		_, _ = conn.WriteTo(hostname(), client) // the client repeats its request
	}
}

func hostname() []byte {
	name, _ := os.Hostname() // the tests do not check the name
	return []byte(name)
}
