package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/components/cluster/addons"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/joindiscovery"
	"hyperkube/internal/credentials/pki"
)

// tokenOptions are the flags of `token` that all its subcommands have.
type tokenOptions struct{ root, kubeconfig string }

// NewToken returns the command `token`, which manages the bootstrap tokens with which machines join.
func NewToken() *cobra.Command {
	o := &tokenOptions{}
	cmd := &cobra.Command{Use: "token", Short: "Manage bootstrap tokens", Args: cobra.NoArgs}
	f := cmd.PersistentFlags()
	command.RootFlag(f, &o.root)
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "The kubeconfig file to use when talking to the cluster. If the flag is not set, $KUBECONFIG or admin.conf of this control plane node is used.")
	cmd.AddCommand(o.create(), o.list(), o.remove(), &cobra.Command{
		Use: "generate", Short: "Generate and print a bootstrap token, but do not create it on the server", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), joindiscovery.NewToken()) },
	})
	return cmd
}

// clients returns a client of the cluster and its configuration. It uses --kubeconfig, otherwise $KUBECONFIG, otherwise
// the kubeconfig of the administrator on this control plane node.
func (o *tokenOptions) clients() (kubernetes.Interface, *rest.Config, error) {
	path := o.kubeconfig
	if path == "" {
		path = os.Getenv(clientcmd.RecommendedConfigPathEnvVar)
	}
	if path == "" {
		path = filepath.Join(command.Layout(o.root).Etc, "admin.conf")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, nil, fmt.Errorf("reading administrator kubeconfig: %w", err)
	}
	kube, err := kubernetes.NewForConfig(config)
	return kube, config, err
}

// create returns the command `token create`.
func (o *tokenOptions) create() *cobra.Command {
	r := &joindiscovery.Record{}
	var ttl time.Duration
	var print bool
	var certificateKey string
	cmd := &cobra.Command{
		Use: "create [TOKEN]", Short: "Create bootstrap tokens on the server", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Token = joindiscovery.NewToken()
			if len(args) > 0 {
				var err error
				if r.Token, err = joindiscovery.ParseToken(args[0]); err != nil {
					return command.ConfigError(err)
				}
			}
			if err := r.Validate(); err != nil {
				return command.ConfigError(err)
			}
			if certificateKey != "" {
				if _, err := joindiscovery.ParseCertificateKey(certificateKey); err != nil {
					return command.ConfigError(fmt.Errorf("--certificate-key: %w", err))
				}
			}
			if ttl > 0 {
				r.Expires = time.Now().Add(ttl)
			}
			return o.make(cmd.Context(), cmd.OutOrStdout(), r, print, certificateKey)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&ttl, "ttl", joindiscovery.DefaultTTL, "The duration before the token is automatically deleted (e.g. 1s, 2m, 3h). If set to '0', the token will never expire.")
	f.StringVar(&r.Description, "description", "", "A human friendly description of how this token is used.")
	f.StringSliceVar(&r.Usages, "usages", []string{joindiscovery.Signing, joindiscovery.Authentication}, "Describes the ways in which this token can be used. Valid options: [signing,authentication].")
	f.StringSliceVar(&r.Groups, "groups", []string{joindiscovery.NodeGroup}, "Extra groups that this token will authenticate as when used for authentication.")
	f.BoolVar(&print, "print-join-command", false, "Instead of printing only the token, print the full 'hyperkube join' command needed to join the cluster using the token.")
	f.StringVar(&certificateKey, "certificate-key", "", "When used together with '--print-join-command', print the full 'hyperkube join' command needed to join the cluster as a control plane node. The key is the one that 'hyperkube init --upload-certs' has printed.")
	return cmd
}

// make creates a bootstrap token in the cluster and prints it or, if join is set, the command with which a machine
// joins. With certificateKey, that command is one for a control plane node.
func (o *tokenOptions) make(ctx context.Context, out io.Writer, r *joindiscovery.Record, join bool, certificateKey string) error {
	kube, config, err := o.clients()
	if err != nil {
		return err
	}
	_, err = kube.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, r.Secret(), metav1.CreateOptions{FieldManager: addons.FieldManager})
	if apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("a token with id %q already exists", r.ID)
	}
	if err != nil {
		return fmt.Errorf("creating bootstrap token: %w", err)
	}
	if !join {
		fmt.Fprintln(out, r.Token)
		return nil
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return fmt.Errorf("reading administrator kubeconfig: %w", err)
	}
	cert, err := pki.ParseCertificate(config.CAData)
	if err != nil {
		return fmt.Errorf("reading CA certificate of the cluster: %w", err)
	}
	command := joinCommand(config.Host, r.Token.String(), cert)
	if certificateKey != "" {
		command += controlPlaneFlags(certificateKey)
	}
	fmt.Fprintln(out, command)
	return nil
}

// list returns the command `token list`.
func (o *tokenOptions) list() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List bootstrap tokens on the server", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			kube, _, err := o.clients()
			if err != nil {
				return err
			}
			secrets, err := kube.CoreV1().Secrets(metav1.NamespaceSystem).List(cmd.Context(), metav1.ListOptions{
				FieldSelector: fields.OneTermEqualSelector("type", string(corev1.SecretTypeBootstrapToken)).String(),
			})
			if err != nil {
				return fmt.Errorf("listing bootstrap tokens: %w", err)
			}
			return printTokens(cmd.OutOrStdout(), secrets.Items, time.Now())
		},
	}
}

// printTokens prints bootstrap tokens, which secrets contain, as the table that kubeadm prints. It returns the errors
// of invalid Secrets after it has printed the others.
func printTokens(out io.Writer, secrets []corev1.Secret, now time.Time) error {
	w := tabwriter.NewWriter(out, 10, 4, 3, ' ', 0)
	fmt.Fprintln(w, "TOKEN\tTTL\tEXPIRES\tUSAGES\tDESCRIPTION\tEXTRA GROUPS")
	or := func(text, empty string) string {
		if text == "" {
			return empty
		}
		return text
	}
	var broken []error
	for i := range secrets {
		r, err := joindiscovery.FromSecret(&secrets[i])
		if err != nil {
			broken = append(broken, err)
			continue
		}
		ttl, expires := "<forever>", "<never>"
		if !r.Expires.IsZero() {
			expires = r.Expires.Format(time.RFC3339)
			if ttl = "<invalid>"; r.Expires.After(now) {
				ttl = duration.ShortHumanDuration(r.Expires.Sub(now))
			}
		}
		slices.Sort(r.Usages)
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Token, ttl, expires,
			or(strings.Join(r.Usages, ","), "<none>"), or(r.Description, "<none>"), or(strings.Join(r.Groups, ","), "<none>"))
	}
	return errors.Join(append(broken, w.Flush())...)
}

// remove returns the command `token delete`.
func (o *tokenOptions) remove() *cobra.Command {
	return &cobra.Command{
		Use: "delete TOKEN-ID ...", Short: "Delete bootstrap tokens on the server", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			kube, _, err := o.clients()
			if err != nil {
				return err
			}
			for _, id := range args {
				id, _, _ = strings.Cut(id, ".")
				if err := kube.CoreV1().Secrets(metav1.NamespaceSystem).Delete(cmd.Context(), joindiscovery.SecretName(id), metav1.DeleteOptions{}); err != nil {
					return fmt.Errorf("deleting bootstrap token %q: %w", id, err)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "bootstrap token %q deleted\n", id)
			}
			return nil
		},
	}
}
