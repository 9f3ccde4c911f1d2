"""What plug-ins for frameworks, and everything else that changes another library, stand on."""
