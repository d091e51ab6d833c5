// Package etcdctl provides etcd's command line client, built from etcd's own commands. Runbooks for
// control planes run it in the etcd pods.
package etcdctl

import (
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/etcdctl/v3/ctlv3/command"
)

// NewCommand returns the `hyperkube etcdctl` command, with etcd's subcommands for keys, members, their health and
// their data. It omits those for etcd's users and roles, locks and elections, because a Kubernetes cluster does not
// use them.
func NewCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "etcdctl",
		Short: "Command line client for etcd: members, health, snapshots and keys",
		Long: "Command line client for etcd: members, health, snapshots and keys. Global flags can also be set by\n" +
			"environment variables, for example --cacert by ETCDCTL_CACERT.",
	}
	f := c.PersistentFlags()
	f.StringSlice("endpoints", []string{"127.0.0.1:2379"}, "gRPC endpoints")
	f.String("cacert", "", "verify certificates of TLS-enabled secure servers using this CA bundle")
	f.String("cert", "", "identify secure client using this TLS certificate file")
	f.String("key", "", "identify secure client using this TLS key file")
	f.StringP("write-out", "w", "simple", "set the output format (fields, json, protobuf, simple, table)")
	f.Bool("hex", false, "print byte strings as hex encoded strings")
	f.Bool("debug", false, "enable client-side debug logging")
	f.Duration("dial-timeout", 2*time.Second, "dial timeout for client connections")
	f.Duration("command-timeout", 5*time.Second, "timeout for short running command (excluding dial timeout)")
	f.Duration("keepalive-time", 2*time.Second, "keepalive time for client connections")
	f.Duration("keepalive-timeout", 6*time.Second, "keepalive timeout for client connections")
	f.Int("max-request-bytes", 0, "client-side request send limit in bytes (default 2 MiB)")
	f.Int("max-recv-bytes", 0, "client-side response receive limit in bytes (default 2 GiB)")
	f.Bool("insecure-transport", true, "disable transport security for client connections")
	f.Bool("insecure-skip-tls-verify", false, "skip server certificate verification (CAUTION: this option should be enabled only for testing purposes)")
	f.String("user", "", "username[:password] for authentication")
	f.String("password", "", "password for authentication")
	f.String("auth-jwt-token", "", "JWT token used for authentication (if this option is used, --user and --password should not be set)")
	f.StringP("discovery-srv", "d", "", "domain name to query for SRV records describing cluster endpoints")
	f.String("discovery-srv-name", "", "service name to query when using DNS discovery")
	f.Bool("insecure-discovery", true, "accept insecure SRV records describing cluster endpoints")

	c.AddGroup(command.NewKVGroup(), command.NewClusterMaintenanceGroup(), command.NewUtilityGroup())
	c.AddCommand(
		command.NewGetCommand(), command.NewPutCommand(), command.NewDelCommand(), command.NewWatchCommand(),
		command.NewMemberCommand(), command.NewEndpointCommand(), command.NewMoveLeaderCommand(),
		command.NewSnapshotCommand(), command.NewCompactionCommand(), command.NewDefragCommand(), command.NewAlarmCommand(),
		command.NewLeaseCommand(), command.NewVersionCommand(),
	)
	return c
}
