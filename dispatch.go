package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"hyperkube/components/apiserver/compose"
	"hyperkube/components/cluster"
	"hyperkube/components/cni"
	"hyperkube/components/controllers"
	"hyperkube/components/dns"
	"hyperkube/components/etcd"
	"hyperkube/components/etcdctl"
	"hyperkube/components/hello"
	"hyperkube/components/kubectl"
	"hyperkube/components/kubelet"
	"hyperkube/components/metrics"
	"hyperkube/components/proxy"
	"hyperkube/components/runtime/launch"
	"hyperkube/components/scheduler"
	"hyperkube/components/scrub"
	"hyperkube/internal/idle"
)

// component is one thing that this program can be.
type component struct {
	// names it answers to, with or without "kube-" before them; the first
	// is the one shown.
	names []string
	short string
	// command makes its command. It is called only when it is wanted: of
	// the many here one runs.
	command func() *cobra.Command
	// main, when set, takes over with the arguments, and command is nil.
	main func(args []string) int
	// ofCluster: it is a command that has to do with a cluster as a whole.
	ofCluster bool
}

func components() []component {
	list := []component{
		{names: []string{"apiserver"}, short: "The API server", command: compose.NewCommand},
		{names: []string{"controller-manager", "controllers"}, short: "The controllers", command: controllers.NewCommand},
		{names: []string{"scheduler"}, short: "The scheduler", command: scheduler.NewCommand},
		{names: []string{"kubelet"}, short: "The kubelet of a node", command: kubelet.NewCommand},
		{names: []string{"proxy"}, short: "The service proxy of a node", command: proxy.NewCommand},
		{names: []string{"cni", "hyperkube-cni"}, short: "The pod network as a plugin for other container runtimes", command: cni.NewCommand},
		{names: []string{"etcd"}, short: "An etcd member", command: etcd.NewCommand},
		{names: []string{"etcdctl"}, short: "The client of etcd", command: etcdctl.NewCommand},
		{names: []string{"metrics"}, short: "The metrics server: what pods and nodes use", command: metrics.NewCommand},
		{names: []string{"dns"}, short: "The cluster's DNS server", command: dns.NewCommand},
		{names: []string{"hello"}, short: "A small web server to try a cluster with", command: hello.NewCommand},
		{names: []string{"scrub"}, short: "Remove what is in a volume, in a pod of the controllers", command: scrub.NewCommand},
		{names: []string{"kubectl"}, short: "The Kubernetes command line client", main: func(args []string) int {
			kubectl.Main(args)
			return 0
		}},
		{names: []string{"runtime"}, short: "The container runtime", main: func(args []string) int {
			err := launch.Exec(args)
			fmt.Fprintln(os.Stderr, "hyperkube runtime:", err)
			return cluster.ExitGeneral
		}},
	}
	for _, command := range cluster.Commands() {
		list = append(list, component{names: []string{command.Name}, short: command.Short, command: command.New, ofCluster: true})
	}
	return list
}

// run dispatches and returns the exit code.
func run(args []string) int {
	list := components()
	name := filepath.Base(args[0])
	if c, ok := find(list, name); ok {
		return c.run(name, args[1:])
	}
	if len(args) < 2 {
		usage(os.Stdout, list)
		return 0
	}
	switch args[1] {
	case "help", "-h", "--help":
		if len(args) == 2 {
			usage(os.Stdout, list)
			return 0
		}
		// help token create is token create --help.
		args = slices.Concat(args[:1], args[2:], []string{"--help"})
	case "--version":
		args[1] = "version"
	}
	switch args[1] {
	case "completion", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd:
		return execute(tree(list), args[1:])
	}
	c, ok := find(list, args[1])
	if !ok {
		fmt.Fprintf(os.Stderr, "hyperkube: unknown component or command %q\n\n", args[1])
		usage(os.Stderr, list)
		return cluster.ExitGeneral
	}
	return c.run("hyperkube "+args[1], args[2:])
}

func find(list []component, name string) (component, bool) {
	name = strings.TrimPrefix(name, "kube-")
	for _, c := range list {
		if slices.Contains(c.names, name) {
			return c, true
		}
	}
	return component{}, false
}

// run runs it with the arguments; called is what its help says that it is called by.
func (c component) run(called string, args []string) int {
	if c.names[0] != "kubectl" {
		// A user's plugins and editors are looked for as the user says; what a
		// node needs is not the user's. Without it, it may still be found.
		_ = os.Setenv("PATH", searchPath(os.Getenv("PATH")))
	}
	if c.main != nil {
		return c.main(args)
	}
	command := c.command()
	if command.Annotations == nil {
		command.Annotations = map[string]string{}
	}
	command.Annotations[cobra.CommandDisplayNameAnnotation] = called
	// There is completion for the whole program.
	command.CompletionOptions.DisableDefaultCmd = true
	return execute(command, args)
}

// execute runs a command under a context that SIGINT and SIGTERM end; a second
// signal ends the process at once.
func execute(command *cobra.Command, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	go func() {
		<-ctx.Done()
		stop()
	}()
	// Commands that return soon have ended before it looks for the first time.
	go idle.Keep(ctx)
	command.SetArgs(args)
	command.SilenceErrors = true
	command.SilenceUsage = true
	err := command.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "hyperkube %s: %v\n", command.Name(), err)
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return cluster.ExitGeneral
}

// tree is all components under one root, for shell completion.
func tree(list []component) *cobra.Command {
	root := &cobra.Command{Use: "hyperkube", Short: "A whole Kubernetes in one file"}
	for _, c := range list {
		if c.command != nil {
			root.AddCommand(c.command())
		} else if c.names[0] == "kubectl" {
			root.AddCommand(kubectl.NewCommand(nil))
		} else {
			root.AddCommand(&cobra.Command{Use: c.names[0], Short: c.short, Run: func(*cobra.Command, []string) {}})
		}
	}
	return root
}

func usage(w io.Writer, list []component) {
	fmt.Fprintln(w, "hyperkube is a whole Kubernetes in one file.")
	fmt.Fprintln(w, "\nUsage: hyperkube COMMAND|COMPONENT [flags], or through a symlink of that name")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	show := func(title string, ofCluster bool) {
		fmt.Fprintf(table, "\n%s:\n", title)
		for _, c := range list {
			if c.ofCluster == ofCluster {
				fmt.Fprintf(table, "  %s\t%s\n", strings.Join(c.names, ", "), c.short)
			}
		}
	}
	show("Commands for a cluster", true)
	fmt.Fprintf(table, "  completion\tPrint what a shell needs to complete commands and flags\n")
	show("Components", false)
	_ = table.Flush() // as little can be done as about the lines above
	fmt.Fprintln(w, "\nhyperkube help COMMAND tells more. Begin with: sudo hyperkube up")
}
