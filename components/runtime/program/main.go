//go:build cgo

// The container runtime's own program. It is small on purpose: libcontainer
// runs it again, as `init`, for every container and every exec. The main
// program embeds it and executes it from memory; see package launch.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"hyperkube/components/runtime"
	_ "hyperkube/components/runtime/container/initial" // as `init` the program ends there
	"hyperkube/components/runtime/images"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "hyperkube runtime:", err)
		tellStarter("error: " + err.Error())
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	cfg            runtime.Config
	podCIDR        string
	registryConfig string
	pidFile        string
	cdiDirs        string
	cniBinDirs     string
	handlers       string
	logLevel       string
}

func parse(args []string) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("runtime", flag.ContinueOnError)
	f.StringVar(&o.cfg.Root, "root", "/var/lib/hyperkube/runtime", "directory of images and containers")
	f.StringVar(&o.cfg.State, "state", "/run/hyperkube/runtime", "directory of what a reboot ends")
	f.StringVar(&o.cfg.Socket, "socket", "/run/hyperkube/runtime.sock", "unix socket that CRI is served on")
	f.StringVar(&o.cfg.BuiltIn, "builtin", "", "program that is the root of the built-in image")
	f.StringVar(&o.cfg.BuiltInImage, "builtin-image", "", "name of the built-in image")
	f.StringVar(&o.cfg.ImagesDir, "images-dir", "", "directory of image archives, *.tar, to import at the start")
	f.StringVar(&o.cfg.LinkPrefix, "link-prefix", "hk", "beginning of the names of network links")
	f.StringVar(&o.podCIDR, "pod-cidr", "10.244.0.0/24", "addresses of pods until the kubelet brings others, one CIDR a family, separated by commas; empty: there are no pods until then")
	f.IntVar(&o.cfg.MTU, "mtu", 0, "MTU of the pods' links, 0 for that of the default route's link")
	f.StringVar(&o.cfg.CNIConfDir, "cni-conf-dir", "/etc/cni/net.d", "directory of configurations of network plugins; while there is one, they connect new pods")
	f.StringVar(&o.cniBinDirs, "cni-bin-dirs", "/opt/cni/bin,/usr/lib/cni", "directories of network plugins, separated by commas")
	f.StringVar(&o.cfg.CgroupRoot, "cgroup-root", "", "cgroup below which pods are that name none")
	f.BoolVar(&o.cfg.SlowCgroups, "slow-cgroups", false, "do not ask the kernel to favor dynamic changes of cgroups (favordynmods)")
	f.StringVar(&o.cfg.Journal, "journal", "", "file that records changes to the host")
	f.StringVar(&o.cfg.StreamAddress, "stream", "127.0.0.1:0", "address that exec, attach and port-forward are served on")
	f.StringVar(&o.handlers, "runtime-handlers", "/etc/hyperkube/handlers.yaml", "file of further programs that run containers, by the handlers of RuntimeClasses")
	f.StringVar(&o.cdiDirs, "cdi-dirs", "/etc/cdi,/var/run/cdi", "directories of files that describe devices, separated by commas; the later counts more")
	f.StringVar(&o.cfg.Kubelet.Known, "known-kubelet-dir", "", "the kubelet's directory as descriptions of devices name it, if that is another than --kubelet-dir")
	f.StringVar(&o.cfg.Kubelet.Own, "kubelet-dir", "", "the kubelet's directory; it is given with --known-kubelet-dir")
	f.StringVar(&o.registryConfig, "registry-config", "/etc/hyperkube/registries.yaml", "file of registry mirrors, credentials and TLS settings")
	f.StringVar(&o.pidFile, "pid-file", "", "file that holds this process's number while it runs")
	_ = f.String("build", "", "what tells this program from other builds of it; it is for who looks at the command line")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if (o.cfg.Kubelet.Known == "") != (o.cfg.Kubelet.Own == "") {
		return nil, errors.New("--kubelet-dir and --known-kubelet-dir belong together")
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return o, nil
}

func run(args []string) error {
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return fmt.Errorf("bad log level: %w", err)
	}
	o.cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	slog.SetDefault(o.cfg.Log)
	// libcontainer passes it on to the first process of a container, which
	// has nothing to do in parallel.
	if err := os.Setenv("GOMAXPROCS", "1"); err != nil {
		return err
	}
	// libcontainer's own log: what matters of it comes back as errors.
	logrus.SetOutput(io.Discard)
	if os.Geteuid() != 0 {
		return errors.New("the container runtime must run as root")
	}
	for part := range strings.FieldsFuncSeq(o.podCIDR, func(r rune) bool { return r == ',' || r == ' ' }) {
		cidr, err := netip.ParsePrefix(part)
		if err != nil {
			return fmt.Errorf("bad pod CIDR: %w", err)
		}
		o.cfg.PodCIDRs = append(o.cfg.PodCIDRs, cidr)
	}
	if o.cfg.Handlers, err = runtime.LoadHandlers(o.handlers); err != nil {
		return err
	}
	o.cfg.CNIBinDirs = strings.FieldsFunc(o.cniBinDirs, func(r rune) bool { return r == ',' })
	o.cfg.CDIDirs = strings.FieldsFunc(o.cdiDirs, func(r rune) bool { return r == ',' })
	if o.cfg.Registries, err = images.LoadRegistries(o.registryConfig); err != nil {
		return err
	}
	o.cfg.Version = os.Getenv(versionEnv)
	_ = os.Unsetenv(versionEnv) // a successor is told of its own
	if o.pidFile != "" {
		unlock, err := lock(o.pidFile)
		if err != nil {
			return err
		}
		defer unlock()
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	r, err := runtime.New(o.cfg)
	if err != nil {
		return err
	}
	go func() {
		select {
		case <-r.Ready():
			o.cfg.Log.Info("the container runtime is ready", "socket", o.cfg.Socket, "pid", os.Getpid())
			tellStarter("ready")
		case <-ctx.Done():
		}
	}()
	err = r.Run(ctx)
	if upgrade, ok := errors.AsType[*runtime.UpgradeError](err); ok {
		// The same process: it stays the parent of the containers.
		_ = os.Unsetenv("GOMAXPROCS") // fails for a name that is none
		err = syscall.Exec(upgrade.Argv[0], upgrade.Argv, os.Environ())
		return fmt.Errorf("executing %s: %w", upgrade.Argv[0], err)
	}
	return err
}

// lockTime bounds the wait for the lock on the PID file.
const lockTime = time.Second

// lock takes the lock on the PID file, which the kernel lets go of however this
// process ends, and writes the number.
func lock(file string) (func(), error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the PID file: %w", err)
	}
	// A child of a runtime that was killed may hold the lock until it executes
	// its program.
	deadline := time.Now().Add(lockTime)
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	for errors.Is(err, unix.EWOULDBLOCK) && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another container runtime holds %s", file)
		}
		return nil, fmt.Errorf("locking the PID file: %w", err)
	}
	if err = f.Truncate(0); err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("writing the PID file: %w", err)
	}
	return func() {
		_ = f.Truncate(0)
		f.Close()
	}, nil
}

// versionEnv has the version of the program that carries this one.
const versionEnv = "HYPERKUBE_RUNTIME_VERSION"

// readyEnv names the descriptor on which who started us waits for a word.
const readyEnv = "HYPERKUBE_RUNTIME_READY_FD"

// tellStarter says how the start went to who waits for it, once.
func tellStarter(word string) {
	var fd int
	if _, err := fmt.Sscan(os.Getenv(readyEnv), &fd); err != nil || fd < 3 {
		return
	}
	_ = os.Unsetenv(readyEnv) // fails for a name that is none
	f := os.NewFile(uintptr(fd), "starter")
	_, _ = io.WriteString(f, word)
	f.Close()
}
