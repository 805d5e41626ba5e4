package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/topology"
)

// authConfig is whose tokens the API takes.
func authConfig(cfg config.Config) (api.AuthConfig, error) {
	a := api.AuthConfig{JWKSURL: cfg.Auth.JWKSURL, Issuer: cfg.Auth.Issuer, Audience: cfg.Auth.Audience}
	if cfg.Auth.HS256KeyFile == "" {
		tls, err := cfg.Auth.JWKSClient()
		if err == nil && tls != nil {
			a.Dial = tls.Dial
		}
		return a, err
	}
	key, err := cfg.Auth.HS256Key()
	a.HS256Key = key
	return a, err
}

// errNoKey says that tokens come from someone else.
var errNoKey = errors.New("minting tokens: the configuration has auth.jwks_url and no auth.hs256_key_file: tokens come from the issuer behind that URL")

func newToken() *cobra.Command {
	var user, role string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:     "token --user U [--role R]",
		Short:   "Mint a token with the HS256 key of the configuration",
		Example: "  TOKEN=$(tidemark token --user u7)",
		Args:    noArgs,
	}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "text", "json")
	cmd.Flags().StringVar(&user, "user", "", "`ID` of the user (required)")
	cmd.Flags().StringVar(&role, "role", "", "`ROLE` to grant, such as operator")
	cmd.Flags().DurationVar(&ttl, "ttl", 24*time.Hour, "`TIME` that the token is good")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		if user == "" {
			return usagef("--user is not given: name the user that the token is for")
		}
		if err := topology.CheckID(user); err != nil {
			return usagef("--user %w", err)
		}
		if role != "" && topology.CheckID(role) != nil {
			return usagef("--role %w", topology.CheckID(role))
		}
		if ttl <= 0 {
			return usagef("--ttl %v is not positive", ttl)
		}
		cfg, err := at.load(config.PartAuth)
		if err != nil {
			return err
		}
		auth, err := authConfig(cfg)
		if err != nil {
			return err
		}
		if len(auth.HS256Key) == 0 {
			return errNoKey
		}
		token, err := auth.Mint(user, role, ttl)
		if err != nil {
			return err
		}
		if out.json() {
			return out.print(cmd.OutOrStdout(), map[string]string{"user": user, "token": token}, nil)
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), token)
		return err
	}
	return cmd
}
