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
	"hyperkube/components/cloudcontroller"
	"hyperkube/components/cluster"
	"hyperkube/components/cni"
	"hyperkube/components/controllers"
	"hyperkube/components/dashboard"
	"hyperkube/components/dns"
	"hyperkube/components/etcd"
	"hyperkube/components/etcdctl"
	"hyperkube/components/explainpod"
	"hyperkube/components/gateway"
	"hyperkube/components/hello"
	"hyperkube/components/kubectl"
	"hyperkube/components/kubelet"
	"hyperkube/components/logging"
	"hyperkube/components/metrics"
	"hyperkube/components/proxy"
	"hyperkube/components/runtime/launch"
	"hyperkube/components/scheduler"
	"hyperkube/components/scrub"
	"hyperkube/components/top"
	"hyperkube/internal/base/idle"
)

// component is a component, such as kube-apiserver, or a command of this program.
type component struct {
	// names of the component, with or without the prefix "kube-". The first one is shown in help.
	names []string
	short string
	// command returns its cobra command. It is called only for the component that runs.
	command func() *cobra.Command
	// main, if set, runs the component with its arguments instead of command.
	main func(args []string) int
	// ofCluster is true for commands that manage a cluster.
	ofCluster bool
}

func components() []component {
	list := []component{
		{names: []string{"apiserver"}, short: "Run the API server", command: compose.NewCommand},
		{names: []string{"controller-manager", "controllers"}, short: "Run the controller manager", command: controllers.NewCommand},
		{names: []string{"cloud-controller-manager"}, short: "Run the cloud controller manager", command: cloudcontroller.NewCommand},
		{names: []string{"scheduler"}, short: "Run the scheduler", command: scheduler.NewCommand},
		{names: []string{"kubelet"}, short: "Run the kubelet of a node", command: kubelet.NewCommand},
		{names: []string{"proxy"}, short: "Run the service proxy of a node", command: proxy.NewCommand},
		{names: []string{"cni", "hyperkube-cni"}, short: "CNI plugin that connects pods of other container runtimes to the pod network", command: cni.NewCommand},
		{names: []string{"etcd"}, short: "Run an etcd member", command: etcd.NewCommand},
		{names: []string{"etcdctl"}, short: "Command line client for etcd", command: etcdctl.NewCommand},
		{names: []string{"metrics"}, short: "Run the metrics server for pods and nodes", command: metrics.NewCommand},
		{names: []string{"dns"}, short: "Run the cluster DNS server", command: dns.NewCommand},
		{names: []string{"gateway"}, short: "Run the gateway for the Gateway API and Ingress", command: gateway.NewCommand},
		{names: []string{"logging-agent"}, short: "Collect, store and search the logs of a node", command: logging.NewAgentCommand},
		{names: []string{"hello"}, short: "Run a small web server to test a cluster", command: hello.NewCommand},
		{names: []string{"scrub"}, short: "Delete the content of a volume (used by the controllers)", command: scrub.NewCommand},
		{names: []string{"kubectl"}, short: "The Kubernetes command line client", main: func(args []string) int {
			kubectl.Main(args)
			return 0
		}},
		{names: []string{"runtime"}, short: "Run the container runtime", main: func(args []string) int {
			err := launch.Exec(args)
			fmt.Fprintln(os.Stderr, "hyperkube runtime:", err)
			return cluster.ExitGeneral
		}},
	}
	for _, command := range cluster.Commands() {
		list = append(list, component{names: []string{command.Name}, short: command.Short, command: command.New, ofCluster: true})
	}
	return append(list,
		component{names: []string{"dashboard"}, short: "Open a dashboard of a cluster in the browser", command: dashboard.NewCommand, ofCluster: true},
		component{names: []string{"explain-pod"}, short: "Explain why a pod is where it is, or why it is not running", command: explainpod.NewCommand, ofCluster: true},
		component{names: []string{"logs"}, short: "Search the stored logs of pods, also of deleted ones, and of nodes", command: logging.NewLogsCommand, ofCluster: true},
		component{names: []string{"top"}, short: "Show the resource usage of nodes and pods with its history", command: top.NewCommand, ofCluster: true},
	)
}

// run runs the component or command that args select: by the name of the program, args[0], or else by the first
// argument. It returns the exit code of the process.
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
		// "help token create" means "token create --help".
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

// run runs the component with args. called is the name shown in its help.
func (c component) run(called string, args []string) int {
	if c.names[0] != "kubectl" {
		// kubectl looks up plugins and editors in the user's PATH. All other components need the
		// system directories, and ignore an error here because programs may be found anyway.
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
	// Completion is provided for the whole program.
	command.CompletionOptions.DisableDefaultCmd = true
	return execute(command, args)
}

// execute runs a command with a context that SIGINT and SIGTERM cancel. A second signal terminates
// the process immediately.
func execute(command *cobra.Command, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	go func() {
		<-ctx.Done()
		stop()
	}()
	// Short commands exit before the first check of idle.Keep.
	go idle.Run(ctx)
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

// tree returns a root command with all components, for shell completion.
func tree(list []component) *cobra.Command {
	root := &cobra.Command{Use: "hyperkube", Short: "Kubernetes in a single binary"}
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
	fmt.Fprintln(w, "hyperkube is a complete Kubernetes in a single binary.")
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
	fmt.Fprintf(table, "  completion\tGenerate the autocompletion script for the specified shell\n")
	show("Components", false)
	_ = table.Flush() // an error would affect the lines above too
	fmt.Fprintln(w, "\nRun 'hyperkube help COMMAND' for more information. To get started, run: sudo hyperkube up")
}
