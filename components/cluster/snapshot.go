package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/teardown"
	"hyperkube/components/etcd"
	"hyperkube/components/etcd/snapshot"
	"hyperkube/internal/layout"
)

// snapshotTimeout bounds how long etcd may take to hand out its state.
const snapshotTimeout = 5 * time.Minute

// usualBump is by how much revisions go on after a restore: more than a cluster
// writes between two snapshots.
const usualBump = 1_000_000_000

func newSnapshot() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Save, restore and look at the state of the cluster",
		Long: "Save, restore and look at the state of the cluster: all that its etcd has.\n" +
			"Snapshots are those of etcdctl and etcdutl. What is in volumes is not part of them, nor are keys and certificates.",
	}
	cmd.AddCommand(newSnapshotSave(), newSnapshotRestore(), newSnapshotStatus())
	return cmd
}

func newSnapshotSave() *cobra.Command {
	var root string
	var dial etcd.DialConfig
	cmd := &cobra.Command{
		Use: "save FILE", Short: "Save the state of the running cluster to a file", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := command.NeedRoot(); err != nil {
				return err
			}
			l := command.Layout(root)
			keys := keysOf(l)
			if len(dial.Servers) == 0 {
				dial.Servers = []string{fmt.Sprintf("https://127.0.0.1:%d", layout.PortEtcdClient)}
				dial.CAFile = cmp.Or(dial.CAFile, filepath.Join(keys, "etcd", "ca.crt"))
				dial.CertFile = cmp.Or(dial.CertFile, filepath.Join(keys, "etcd", "healthcheck-client.crt"))
				dial.KeyFile = cmp.Or(dial.KeyFile, filepath.Join(keys, "etcd", "healthcheck-client.key"))
			}
			if len(dial.Servers) != 1 {
				return command.ConfigError(errors.New("a snapshot is taken of one member: give one endpoint"))
			}
			client, err := etcd.Dial(dial)
			if err != nil {
				return err
			}
			defer client.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), snapshotTimeout)
			defer cancel()
			if err := snapshot.Save(ctx, client, args[0]); err != nil {
				return err
			}
			s, err := snapshot.Read(args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "saved %s: revision %d, %d keys, %.1f MB\n", args[0], s.Revision, s.TotalKey, float64(s.TotalSize)/1e6)
			if file := filepath.Join(keys, "encryption.yaml"); layout.Exists(file) {
				fmt.Fprintf(cmd.OutOrStdout(), "Secrets in it are encrypted: keep %s with it, and the rest of %s\n", file, keys)
			}
			return nil
		},
	}
	command.RootFlag(cmd.Flags(), &root)
	f := cmd.Flags()
	f.StringSliceVar(&dial.Servers, "endpoints", nil, "URL of the etcd to save; empty: this machine's.")
	f.StringVar(&dial.CAFile, "cacert", "", "Certificate authority of that etcd.")
	f.StringVar(&dial.CertFile, "cert", "", "Client certificate for that etcd.")
	f.StringVar(&dial.KeyFile, "key", "", "Key of the client certificate.")
	return cmd
}

func newSnapshotRestore() *cobra.Command {
	var root string
	r := snapshot.Restored{}
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Give the stopped cluster the state of a snapshot", Args: cobra.ExactArgs(1),
		Long: "Give the stopped cluster the state of a snapshot. The state that it has is kept in a directory beside it.\n" +
			"Clusters of `up` are stopped by `hyperkube stop`. On a machine of `init` nothing needs to be stopped:\n" +
			"the static pod of etcd is taken away meanwhile. Further masters are reset before and join again after.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := command.NeedRoot(); err != nil {
				return err
			}
			l := command.Layout(root)
			r.Snapshot = args[0]
			old, err := restore(cmd.Context(), l, &r)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "restored %s to %s\n", r.Snapshot, r.DataDir)
			if old != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "the state that was there is in %s\n", old)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Secrets can be read if %s is the one of the time of the snapshot\n", filepath.Join(keysOf(l), "encryption.yaml"))
			return nil
		},
	}
	command.RootFlag(cmd.Flags(), &root)
	f := cmd.Flags()
	f.StringVar(&r.DataDir, "data-dir", "", "Directory of etcd's data; empty: that of this machine's cluster.")
	f.StringVar(&r.Name, "name", "", "Name of the member; empty: as the cluster has it.")
	f.StringVar(&r.PeerURL, "initial-advertise-peer-urls", "", "URL of the member for other members; empty: as the cluster has it.")
	f.Uint64Var(&r.RevisionBump, "bump-revision", usualBump, "By how much revisions go on from those of the snapshot, so that clients never see one twice; all before counts as compacted.")
	f.BoolVar(&r.SkipHashCheck, "skip-hash-check", false, "Take a file without a checksum: the copy of a member's database.")
	return cmd
}

func newSnapshotStatus() *cobra.Command {
	var form command.Output
	cmd := &cobra.Command{
		Use: "status FILE", Short: "Tell what a snapshot holds, and whether it is whole", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := snapshot.Read(args[0])
			if err != nil {
				return err
			}
			return form.Write(cmd.OutOrStdout(), s, func(out io.Writer) error {
				w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
				fmt.Fprintf(w, "HASH\tREVISION\tKEYS\tSIZE\tVERSION\n%x\t%d\t%d\t%.1f MB\t%s\n", s.Hash, s.Revision, s.TotalKey, float64(s.TotalSize)/1e6, s.Version)
				return w.Flush()
			})
		},
	}
	form.Flag(cmd)
	return cmd
}

// restore gives this machine's member, or the one that r names, the state of a
// snapshot.
func restore(ctx context.Context, l layout.Node, r *snapshot.Restored) (old string, err error) {
	if r.DataDir != "" {
		if err := memberOf(l, r, ""); err != nil {
			return "", command.ConfigError(err)
		}
		return snapshot.Restore(*r)
	}
	r.DataDir = l.Etcd()
	manifest, aside := filepath.Join(l.StaticPods(), "etcd.yaml"), filepath.Join(l.Etc, "etcd.yaml.restoring")
	if !layout.Exists(manifest) && !layout.Exists(aside) {
		if pid, err := pidlock.Holder(l.PIDFile(layout.MainProcess)); err != nil {
			return "", err
		} else if pid != 0 {
			return "", command.PreflightError(errors.New("the cluster is running: stop it first, by hyperkube stop"))
		}
		// Nor does it start meanwhile.
		lock, err := pidlock.TakeMain(ctx, l)
		if err != nil {
			return "", err
		}
		defer lock.Release()
		if err := memberOf(l, r, ""); err != nil {
			return "", command.ConfigError(err)
		}
		return snapshot.Restore(*r)
	}
	if layout.Exists(manifest) {
		if err := os.Rename(manifest, aside); err != nil {
			return "", fmt.Errorf("taking the manifest of etcd away: %w", err)
		}
	}
	defer func() { err = errors.Join(err, os.Rename(aside, manifest)) }()
	if err := memberOf(l, r, aside); err != nil {
		return "", command.ConfigError(err)
	}
	ctx, cancel := context.WithTimeout(ctx, teardown.StopTimeout*2)
	defer cancel()
	if err := snapshot.WaitIdle(ctx, r.DataDir); err != nil {
		return "", err
	}
	return snapshot.Restore(*r)
}

// keysOf is the folder of the cluster's keys: of `up`, or of `init`.
func keysOf(l layout.Node) string {
	if dir := l.PKI(); layout.Exists(dir) {
		return dir
	}
	return filepath.Join(l.Etc, "pki")
}

// memberOf fills in the name and the URL of the member that this machine's
// cluster has: by the manifest of a master's, or as `up` makes it where there is
// none.
func memberOf(l layout.Node, r *snapshot.Restored, manifest string) error {
	if r.Name != "" && r.PeerURL != "" {
		return nil
	}
	name, url := "", ""
	if manifest != "" {
		data, err := os.ReadFile(manifest)
		if err != nil {
			return fmt.Errorf("reading the manifest of etcd: %w", err)
		}
		var pod corev1.Pod
		if err := yaml.Unmarshal(data, &pod); err != nil {
			return fmt.Errorf("reading the manifest of etcd: %w", err)
		}
		for i := range pod.Spec.Containers {
			for _, arg := range pod.Spec.Containers[i].Args {
				if v, ok := strings.CutPrefix(arg, "--name="); ok {
					name = v
				}
				if v, ok := strings.CutPrefix(arg, "--initial-advertise-peer-urls="); ok {
					url = v
				}
			}
		}
	} else if id, ok, err := identity.Load(l); err == nil && ok {
		name, url = id.NodeName, fmt.Sprintf("https://127.0.0.1:%d", layout.PortEtcdPeer)
	}
	r.Name, r.PeerURL = cmp.Or(r.Name, name), cmp.Or(r.PeerURL, url)
	if r.Name == "" || r.PeerURL == "" {
		return errors.New("it is not known which member this machine has: give --name and --initial-advertise-peer-urls")
	}
	return nil
}
