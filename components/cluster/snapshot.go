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

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/teardown"
	"hyperkube/components/etcd"
	"hyperkube/components/etcd/snapshot"
	"hyperkube/internal/host/layout"
)

// snapshotTimeout limits how long etcd may take to send a snapshot.
const snapshotTimeout = 5 * time.Minute

// defaultRevisionBump is the default of --bump-revision. It exceeds the number of revisions that a cluster writes
// between two snapshots, so clients never see a revision twice.
const defaultRevisionBump = 1_000_000_000

// newSnapshot returns the command `snapshot`.
func newSnapshot() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Save, restore and inspect snapshots of the cluster state",
		Long: "Save, restore and inspect snapshots of the cluster state in etcd.\n" +
			"The format is that of etcdctl and etcdutl. Snapshots do not contain volumes, keys and certificates.",
	}
	cmd.AddCommand(newSnapshotSave(), newSnapshotRestore(), newSnapshotStatus())
	return cmd
}

// newSnapshotSave returns the command `snapshot save`, which saves a snapshot of one etcd member. Without --endpoints,
// that is the member of this machine.
func newSnapshotSave() *cobra.Command {
	var root string
	var dial etcd.DialConfig
	cmd := &cobra.Command{
		Use: "save FILE", Short: "Save a snapshot of the running cluster to a file", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := command.RequireRoot(); err != nil {
				return err
			}
			l := command.Layout(root)
			keys := clusterconfig.KeyDir(l)
			if len(dial.Servers) == 0 {
				dial.Servers = []string{fmt.Sprintf("https://127.0.0.1:%d", layout.PortEtcdClient)}
				ca, cert, key := clusterconfig.EtcdClientFiles(l)
				dial.CAFile, dial.CertFile, dial.KeyFile = cmp.Or(dial.CAFile, ca), cmp.Or(dial.CertFile, cert), cmp.Or(dial.KeyFile, key)
			}
			if len(dial.Servers) != 1 {
				return command.ConfigError(errors.New("a snapshot is taken from one etcd member; set --endpoints to a single URL"))
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
				fmt.Fprintf(cmd.OutOrStdout(), "Secrets in the snapshot are encrypted; back up %s and the other files in %s as well\n", file, keys)
			}
			return nil
		},
	}
	command.RootFlag(cmd.Flags(), &root)
	f := cmd.Flags()
	f.StringSliceVar(&dial.Servers, "endpoints", nil, "URL of the etcd member. Defaults to the member of this machine.")
	f.StringVar(&dial.CAFile, "cacert", "", "Path to the CA certificate of etcd.")
	f.StringVar(&dial.CertFile, "cert", "", "Path to the client certificate for etcd.")
	f.StringVar(&dial.KeyFile, "key", "", "Path to the private key of the client certificate.")
	return cmd
}

// newSnapshotRestore returns the command `snapshot restore`. The cluster must be stopped.
func newSnapshotRestore() *cobra.Command {
	var root string
	r := snapshot.RestoreOptions{}
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Restore a stopped cluster from a snapshot", Args: cobra.ExactArgs(1),
		Long: "Restore a stopped cluster from a snapshot. The previous state is kept in a directory next to it.\n" +
			"Stop a cluster of `hyperkube up` with `hyperkube stop` first. On a machine set up with `hyperkube init`,\n" +
			"the static pod of etcd is stopped during the restore. Reset other control plane nodes before, and join them again afterwards.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := command.RequireRoot(); err != nil {
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
				fmt.Fprintf(cmd.OutOrStdout(), "the previous state is in %s\n", old)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Secrets are only readable if %s has not changed since the snapshot was saved\n", filepath.Join(clusterconfig.KeyDir(l), "encryption.yaml"))
			return nil
		},
	}
	command.RootFlag(cmd.Flags(), &root)
	f := cmd.Flags()
	f.StringVar(&r.DataDir, "data-dir", "", "Data directory of etcd. Defaults to that of this machine's cluster.")
	f.StringVar(&r.Name, "name", "", "Name of the etcd member. Defaults to that of this machine.")
	f.StringVar(&r.PeerURL, "initial-advertise-peer-urls", "", "Peer URL of the etcd member. Defaults to that of this machine.")
	f.Uint64Var(&r.RevisionBump, "bump-revision", defaultRevisionBump, "How much to increase the latest revision after the restore, so that clients never see a revision twice. Earlier revisions are marked as compacted.")
	f.BoolVar(&r.SkipHashCheck, "skip-hash-check", false, "Ignore a missing checksum. Required for a file copied from the data directory of a member.")
	return cmd
}

// newSnapshotStatus returns the command `snapshot status`, which verifies a snapshot file. It needs no cluster.
func newSnapshotStatus() *cobra.Command {
	var form command.Output
	cmd := &cobra.Command{
		Use: "status FILE", Short: "Verify a snapshot and print its hash, revision, number of keys and size", Args: cobra.ExactArgs(1),
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

// restore restores the etcd member of this machine, or the one in r.DataDir, from a snapshot. It returns an error
// while a cluster of `up` is running. On a control plane node of init or join, it stops etcd during the restore by
// moving its static pod manifest. It returns the directory of the previous state.
func restore(ctx context.Context, l layout.Node, r *snapshot.RestoreOptions) (old string, err error) {
	if r.DataDir != "" {
		if err := setMember(l, r, ""); err != nil {
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
			return "", command.PreflightError(errors.New("the cluster is running; stop it first with `hyperkube stop`"))
		}
		// Prevents a start during the restore.
		lock, err := pidlock.AcquireMain(ctx, l)
		if err != nil {
			return "", err
		}
		defer lock.Release()
		if err := setMember(l, r, ""); err != nil {
			return "", command.ConfigError(err)
		}
		return snapshot.Restore(*r)
	}
	if layout.Exists(manifest) {
		if err := os.Rename(manifest, aside); err != nil {
			return "", fmt.Errorf("moving the manifest of etcd: %w", err)
		}
	}
	defer func() { err = errors.Join(err, os.Rename(aside, manifest)) }()
	if err := setMember(l, r, aside); err != nil {
		return "", command.ConfigError(err)
	}
	ctx, cancel := context.WithTimeout(ctx, teardown.StopTimeout*2)
	defer cancel()
	if err := snapshot.WaitIdle(ctx, r.DataDir); err != nil {
		return "", err
	}
	return snapshot.Restore(*r)
}

// setMember sets the name and the peer URL of the etcd member in r if they are unset: to those in manifest, the static
// pod manifest of etcd, or those of `up` if manifest is "". It returns an error if they remain unknown.
func setMember(l layout.Node, r *snapshot.RestoreOptions, manifest string) error {
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
	} else if id, ok, err := clusterconfig.Load(l); err == nil && ok {
		name, url = id.NodeName, fmt.Sprintf("https://127.0.0.1:%d", layout.PortEtcdPeer)
	}
	r.Name, r.PeerURL = cmp.Or(r.Name, name), cmp.Or(r.PeerURL, url)
	if r.Name == "" || r.PeerURL == "" {
		return errors.New("unknown etcd member; set --name and --initial-advertise-peer-urls")
	}
	return nil
}
