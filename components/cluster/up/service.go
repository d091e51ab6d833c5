package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/preflight"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/service"
	"hyperkube/components/cluster/teardown"
	"hyperkube/internal/base/version"
	"hyperkube/internal/credentials/kubeconfig"
	"hyperkube/internal/host/layout"
	"hyperkube/packaging"
)

// manageService handles --service. It returns true if the service now runs the cluster and `up` has nothing left
// to do. It returns false if `up` must continue: with --foreground, without a service, after --service=false has
// removed it, and if the running service needs no restart. A cluster with a service keeps it until --service=false.
func (o *upOptions) manageService(cmd *cobra.Command, l layout.Node) (done bool, err error) {
	ctx, out, asked := cmd.Context(), cmd.OutOrStdout(), cmd.Flags().Changed("service")
	switch {
	case o.foreground && o.service:
		return false, command.ConfigError(errors.New("--service and --foreground exclude each other"))
	case o.foreground:
		return false, nil
	case asked && !o.service:
		removed, err := service.Cluster.Remove(ctx, l)
		if removed && err == nil {
			fmt.Fprintf(out, "stopped and removed the %s\n", service.Cluster.Describe())
		}
		return false, err
	case !asked && !service.Cluster.Exists(l):
		return false, nil
	case l != layout.Default():
		return false, command.ConfigError(errors.New("--service cannot be used with --root: only the cluster with the default paths can be a service"))
	case !service.HasManager():
		return false, command.ConfigError(errors.New("--service needs systemd or OpenRC, which do not run on this machine; start `hyperkube up --foreground` from its service manager"))
	}
	return o.startService(cmd, l, asked)
}

// startService installs and starts the unit and waits until the cluster is ready. It returns false, without starting
// the unit, if that already runs with the same flags, build and configuration. It writes the unit file only if the user
// set --service or another flag that belongs in the unit. asked is true if --service was set.
func (o *upOptions) startService(cmd *cobra.Command, l layout.Node, asked bool) (done bool, err error) {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	// Report errors here and not in the journal.
	if _, err := o.settings.KubeletConfiguration(o.kubeletConfig, o.kubeletConfigDir); err != nil {
		return false, command.ConfigError(err)
	}
	if err := preflight.CheckDisk(l); err != nil {
		return false, command.PreflightError(err)
	}
	changed := false
	if _, err := makePathsAbsolute(cmd.Flags()); err != nil { // the unit has another working directory
		return false, command.ConfigError(err)
	}
	if args, set := unitArguments(cmd.Flags()); asked || set {
		self, err := os.Executable()
		if err != nil {
			return false, fmt.Errorf("finding the hyperkube binary: %w", err)
		}
		if changed, err = service.Cluster.Install(ctx, service.Definition{
			Description: "Kubernetes cluster on this machine",
			Command:     append([]string{self, "up", "--foreground", "--no-kubeconfig"}, args...), SystemdUnit: packaging.Unit,
		}); err != nil {
			return false, err
		}
	}
	running, err := o.stopOther(ctx, out, l)
	if err != nil {
		return false, err
	}
	if running && !changed {
		if kinds, err := o.changedKinds(cmd.Flags(), l); err != nil || len(kinds) == 0 {
			return false, err
		}
	}
	if err := service.Cluster.Start(ctx, progress.DefaultTimeout, progress.New(progress.Print(out))); err != nil {
		return false, err
	}
	if !o.noKubeconfig {
		if err := mergeAdminKubeconfig(l); err != nil {
			return false, err
		}
	}
	fmt.Fprintf(out, "hyperkube %s is up and starts at boot; its log is printed by `%s`\n", version.Get().GitVersion, service.Cluster.LogCommand())
	return true, nil
}

// stopOther stops a main process that the unit did not start; its pods keep running. It reports whether the unit's main
// process runs and is of this build.
func (o *upOptions) stopOther(ctx context.Context, out io.Writer, l layout.Node) (running bool, err error) {
	pid, err := pidlock.Holder(l.PIDFile(layout.MainProcess))
	if err != nil || pid == 0 {
		return false, err
	}
	main, err := service.Cluster.MainPID(ctx)
	if err != nil {
		return false, err
	}
	if main != pid {
		return false, teardown.StopMain(ctx, out, l)
	}
	same, err := sameProgram(fmt.Sprintf("/proc/%d/exe", pid), "/proc/self/exe")
	return same && err == nil, nil // a process that exits in the meantime is restarted
}

// unitArguments returns the arguments of `up` in the unit for the flags that the user set, and whether there are any.
// It leaves out flags that the unit sets or that do not apply to it.
func unitArguments(flags *pflag.FlagSet) (args []string, set bool) {
	flags.Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "service", "foreground", "no-kubeconfig", "root", outputFlag:
			return
		}
		value := f.Value.String()
		if list, ok := f.Value.(pflag.SliceValue); ok {
			value = strings.Join(list.GetSlice(), ",")
		}
		args = append(args, "--"+f.Name+"="+value)
	})
	return args, len(args) > 0
}

// savedResult returns how to access a cluster that has started before; nil if its kubeconfig cannot be read.
func savedResult(l layout.Node) *progress.Result {
	path := clusterconfig.AdminKubeconfig(l)
	admin, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil
	}
	current := admin.Contexts[admin.CurrentContext]
	if current == nil || admin.Clusters[current.Cluster] == nil {
		return nil
	}
	id, _, _ := clusterconfig.Load(l) // without a configuration, the name of the node is unknown
	return &progress.Result{Kubeconfig: path, Server: admin.Clusters[current.Cluster].Server, Node: id.NodeName}
}

// mergeAdminKubeconfig merges the administrator's kubeconfig, which the unit has written, into that of the user.
func mergeAdminKubeconfig(l layout.Node) error {
	admin, err := clientcmd.LoadFromFile(clusterconfig.AdminKubeconfig(l))
	if err != nil {
		return fmt.Errorf("reading the kubeconfig of the administrator: %w", err)
	}
	current := admin.Contexts[admin.CurrentContext]
	if current == nil || admin.Clusters[current.Cluster] == nil || admin.AuthInfos[current.AuthInfo] == nil {
		return fmt.Errorf("reading the kubeconfig of the administrator: %s has no complete current context", clusterconfig.AdminKubeconfig(l))
	}
	target, err := kubeconfig.UserTarget(os.Getenv)
	if err != nil {
		return err
	}
	cluster, user := admin.Clusters[current.Cluster], admin.AuthInfos[current.AuthInfo]
	return target.Merge(kubeconfig.Config{
		Name: kubeconfig.DefaultName, Server: cluster.Server, CA: cluster.CertificateAuthorityData,
		Cert: user.ClientCertificateData, Key: user.ClientKeyData,
	})
}
