//go:build cgo

// The container runtime program. It is small on purpose, because libcontainer executes it as `init`
// for every container and every exec. The main program embeds it and executes it from memory; see
// package launch.
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
	_ "hyperkube/components/runtime/container/initial" // as `init`, the program stops in its init function
	"hyperkube/components/runtime/images"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/logfile"
	"hyperkube/internal/host/packetfilter"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "hyperkube runtime:", err)
		reportStart("error: " + err.Error())
		os.Exit(1)
	}
}

// options are the command line flags. Those that run converts before it adds them to cfg have their own fields.
type options struct {
	cfg            runtime.Config
	podCIDR        string
	proxyMode      string
	registryConfig string
	pidFile        string
	cdiDirs        string
	cniBinDirs     string
	handlers       string
	logLevel       string
	logFile        string
}

// parse parses the command line flags. It returns flag.ErrHelp if the user requests help.
func parse(args []string) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("runtime", flag.ContinueOnError)
	f.StringVar(&o.cfg.Root, "root", "/var/lib/hyperkube/runtime", "directory of images and containers")
	f.StringVar(&o.cfg.State, "state", "/run/hyperkube/runtime", "directory of state that does not outlive a reboot")
	f.StringVar(&o.cfg.Socket, "socket", "/run/hyperkube/runtime.sock", "path of the unix socket that serves CRI")
	f.StringVar(&o.cfg.BuiltIn, "builtin", "", "path of the program in the built-in image")
	f.StringVar(&o.cfg.BuiltInImage, "builtin-image", "", "name of the built-in image")
	f.StringVar(&o.cfg.ImagesDir, "images-dir", "", "directory of image archives (*.tar) to import at startup")
	f.StringVar(&o.cfg.LinkPrefix, "link-prefix", "hk", "name prefix of network links")
	f.StringVar(&o.podCIDR, "pod-cidr", "10.244.0.0/24", "pod CIDRs until the kubelet sets others, one per IP family, separated by commas; if empty, the network is not ready until then")
	f.StringVar(&o.proxyMode, "proxy-mode", string(packetfilter.Auto), "how rules of the pod network are written: auto, iptables or nftables")
	f.IntVar(&o.cfg.MTU, "mtu", 0, "MTU of the pods' links; 0 uses the MTU of the link with the default route")
	f.StringVar(&o.cfg.CNIConfDir, "cni-conf-dir", "/etc/cni/net.d", "CNI configuration directory; if it contains a configuration, CNI plugins connect new pods")
	f.StringVar(&o.cniBinDirs, "cni-bin-dirs", "/opt/cni/bin,/usr/lib/cni", "directories of CNI plugin binaries, separated by commas")
	f.StringVar(&o.cfg.CgroupRoot, "cgroup-root", "", "parent cgroup of pods that do not specify one")
	f.BoolVar(&o.cfg.SlowCgroups, "slow-cgroups", false, "do not enable fast moves of processes between cgroups (favordynmods)")
	f.StringVar(&o.cfg.Journal, "journal", "", "path of the journal of host changes")
	f.StringVar(&o.cfg.StreamAddress, "stream", "127.0.0.1:0", "address to serve exec, attach and port-forward on")
	f.StringVar(&o.handlers, "runtime-handlers", "/etc/hyperkube/handlers.yaml", "file with additional OCI runtimes, by RuntimeClass handler")
	f.StringVar(&o.cdiDirs, "cdi-dirs", "/etc/cdi,/var/run/cdi", "directories of CDI files, separated by commas; later directories take precedence")
	f.StringVar(&o.cfg.Kubelet.Advertised, "known-kubelet-dir", "", "the kubelet's directory as CDI files refer to it, if it differs from --kubelet-dir")
	f.StringVar(&o.cfg.Kubelet.Actual, "kubelet-dir", "", "the kubelet's directory; required with --known-kubelet-dir")
	f.StringVar(&o.registryConfig, "registry-config", "/etc/hyperkube/registries.yaml", "file with registry mirrors, credentials and TLS settings")
	f.StringVar(&o.pidFile, "pid-file", "", "PID file")
	_ = f.String("build", "", "identifier of the build; read from the command line by other processes")
	f.StringVar(&o.logFile, "log-file", "", "file that is rotated if it is standard error")
	f.StringVar(&o.logLevel, "log-level", "info", "log level: debug, info, warn or error")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if (o.cfg.Kubelet.Advertised == "") != (o.cfg.Kubelet.Actual == "") {
		return nil, errors.New("--kubelet-dir and --known-kubelet-dir must be set together")
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return o, nil
}

// run runs the container runtime until SIGTERM or SIGINT. If an upgrade is requested, it executes the new program and
// does not return.
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
		return fmt.Errorf("invalid log level: %w", err)
	}
	o.cfg.Log = slog.New(slog.NewTextHandler(logfile.Stderr(o.logFile, logfile.Defaults()), &slog.HandlerOptions{Level: level}))
	slog.SetDefault(o.cfg.Log)
	// libcontainer passes the variable to the init process of a container, which does not need
	// parallelism.
	if err := os.Setenv("GOMAXPROCS", "1"); err != nil {
		return err
	}
	// Discard libcontainer's own log. Relevant messages are returned as errors.
	logrus.SetOutput(io.Discard)
	if os.Geteuid() != 0 {
		return errors.New("the container runtime must run as root")
	}
	for part := range strings.FieldsFuncSeq(o.podCIDR, func(r rune) bool { return r == ',' || r == ' ' }) {
		cidr, err := netip.ParsePrefix(part)
		if err != nil {
			return fmt.Errorf("invalid pod CIDR: %w", err)
		}
		o.cfg.PodCIDRs = append(o.cfg.PodCIDRs, cidr)
	}
	if o.cfg.Handlers, err = runtime.LoadHandlers(o.handlers); err != nil {
		return err
	}
	if o.cfg.PacketFilter, err = packetfilter.Mode(o.proxyMode).Select(context.Background(), nil); err != nil {
		return fmt.Errorf("--proxy-mode: %w", err)
	}
	o.cfg.CNIBinDirs = strings.FieldsFunc(o.cniBinDirs, func(r rune) bool { return r == ',' })
	o.cfg.CDIDirs = strings.FieldsFunc(o.cdiDirs, func(r rune) bool { return r == ',' })
	if o.cfg.Registries, err = images.LoadRegistries(o.registryConfig); err != nil {
		return err
	}
	setProcessName()
	o.cfg.Version = os.Getenv(versionEnv)
	_ = os.Unsetenv(versionEnv) // a replacing program gets its own version
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
			o.cfg.Log.Info("container runtime ready for CRI calls", "socket", o.cfg.Socket, "pid", os.Getpid())
			reportStart("ready")
		case <-ctx.Done():
		}
	}()
	err = r.Run(ctx)
	if upgrade, ok := errors.AsType[*runtime.UpgradeError](err); ok {
		// Keep the process, because it is the parent of the containers.
		_ = os.Unsetenv("GOMAXPROCS") // fails only for invalid names
		err = syscall.Exec(upgrade.Argv[0], upgrade.Argv, os.Environ())
		return fmt.Errorf("executing %s: %w", upgrade.Argv[0], err)
	}
	return err
}

// setProcessName sets the name of the process in the output of ps and in messages of the kernel, which truncates it to 15
// bytes. Otherwise the name is the number of the file descriptor that the program was executed from. A failure has no
// effect on anything else, so it is ignored.
func setProcessName() { _ = os.WriteFile("/proc/self/comm", []byte(layout.RuntimeName), 0) }

// lockTimeout is how long lock retries while another process holds the lock on the PID file.
const lockTimeout = time.Second

// lock locks the PID file, so that only one runtime uses it, and writes the process ID to it. The returned
// function empties and unlocks the file. The kernel also releases the lock when the process exits. It returns
// an error if another runtime holds the lock for longer than lockTimeout.
func lock(file string) (func(), error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the PID file: %w", err)
	}
	// A child of a killed runtime may hold the lock until it executes its program.
	deadline := time.Now().Add(lockTimeout)
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	for errors.Is(err, unix.EWOULDBLOCK) && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another container runtime holds the lock on %s", file)
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

// versionEnv is the environment variable in which the main program, which embeds this one, passes its version.
const versionEnv = "HYPERKUBE_RUNTIME_VERSION"

// readyEnv is the environment variable with the file descriptor on which the parent process waits for the result of the
// startup, see package launch.
const readyEnv = "HYPERKUBE_RUNTIME_READY_FD"

// reportStart writes word, the result of the startup, to the parent process: "ready", or "error: " and a message.
// Only the first call has an effect. Without a waiting parent it does nothing.
func reportStart(word string) {
	var fd int
	if _, err := fmt.Sscan(os.Getenv(readyEnv), &fd); err != nil || fd < 3 {
		return
	}
	_ = os.Unsetenv(readyEnv) // fails only for invalid names
	f := os.NewFile(uintptr(fd), "starter")
	_, _ = io.WriteString(f, word)
	f.Close()
}
